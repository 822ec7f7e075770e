#pragma once

#include <redco/dataset.h>
#include <redco/deployer.h>
#include <redco/mesh.h>
#include <redco/tree.h>

#include <c10/core/Device.h>

#include <memory>
#include <span>
#include <vector>

namespace redco {

/// The device of the first tensor, or the CPU.
at::Device device_of(const Tree& tree);

/// The tree with its tensors on `device`; the very same tree where they are there already.
Tree to_device(Tree tree, at::Device device);

/// The tree with its floating-point tensors in `dtype`: real ones, of any other such type.
Tree in_dtype(const Tree& tree, at::ScalarType dtype);

/// Throws Error, which begins with `what`, for an empty set.
void check_examples(const char* what, const Dataset& examples);

/// The batch of the examples with these indices. Its tensors are on `device`, and split over dp
/// where their first dimension is that of the examples.
Tree make_batch(const Dataset& examples, std::span<const int64_t> indices, Collate collate,
                at::Device device, const std::shared_ptr<Mesh>& mesh);

/// The batch whose way through a model decides how that is laid out: the first examples, the same
/// on all processes, so that they come to the same layout.
Tree layout_batch(const Dataset& examples, int64_t per_device_batch_size, Collate collate,
                  at::Device device, const Deployer& deployer);

/// The tensors as plain ones, on every process.
Tree gathered(const Tree& tree);

/// What sums over batches are divided by: the sum of their weights, or 1 where nothing counted, so
/// that a loss of 0 stays one.
at::Tensor divisor(const at::Tensor& weight_sum);

/// first, first + 1, ..., last - 1.
std::vector<int64_t> index_range(int64_t first, int64_t last);

}  // namespace redco
