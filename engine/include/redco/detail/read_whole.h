#pragma once

#include <redco/export.h>
#include <redco/sharding.h>

#include <memory>

namespace redco {

/// As `shard` and `full`, for code that only reads the result: where nothing moves, it shares the
/// memory of `tensor`. Not differentiable.
REDCO_API at::Tensor shard_to_read(const at::Tensor& tensor,
                                   const std::shared_ptr<const Mesh>& mesh,
                                   const Placements& placements);
REDCO_API at::Tensor full_to_read(const at::Tensor& tensor);

}  // namespace redco
