#pragma once

#include <redco/dataset.h>
#include <redco/mesh.h>

#include <c10/core/Device.h>

#include <memory>
#include <span>

namespace redco::train {

/// The examples of a batch that this process collates with `Collate::local`: those of its dp rank,
/// or the first one if the rank has none.
std::span<const int64_t> local_part(std::span<const int64_t> indices, const Mesh& mesh);

/// Returns the batch of the examples with these indices, of which each process collates its
/// `local_part`; a rank without examples keeps no row. Takes one small collective, and two more if
/// the processes' batches differ. Throws Error, on all processes, if the batches do not fit
/// together.
Tree local_batch(const Dataset& examples, std::span<const int64_t> indices, at::Device device,
                 const std::shared_ptr<Mesh>& mesh);

}  // namespace redco::train
