#pragma once

#include <redco/dataset.h>
#include <redco/mesh.h>

#include <c10/core/Device.h>

#include <memory>
#include <span>

namespace redco {

/// The batch of the examples with these indices, of which each process collates those of its dp
/// rank alone, as `Collate::local` says; a rank that has none collates the first of all and keeps
/// no row of it. One small collective, and two more where the processes' batches differ. Throws
/// Error, on all processes, where they do not fit together.
Tree local_batch(const Dataset& examples, std::span<const int64_t> indices, at::Device device,
                 const std::shared_ptr<Mesh>& mesh);

}  // namespace redco
