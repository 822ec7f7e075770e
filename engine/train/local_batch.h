#pragma once

#include <redco/dataset.h>
#include <redco/mesh.h>

#include <c10/core/Device.h>

#include <memory>
#include <span>

namespace redco {

/// Of the examples of a batch those that this process collates with `Collate::local`: those of its
/// dp rank, or the first of all where it has none.
std::span<const int64_t> local_part(std::span<const int64_t> indices, const Mesh& mesh);

/// The batch of the examples with these indices, of which each process collates its `local_part`;
/// a rank that has none keeps no row of it. One small collective, and two more where the processes'
/// batches differ. Throws Error, on all processes, where they do not fit together.
Tree local_batch(const Dataset& examples, std::span<const int64_t> indices, at::Device device,
                 const std::shared_ptr<Mesh>& mesh);

}  // namespace redco
