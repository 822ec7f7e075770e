#pragma once

#include <redco/mesh.h>
#include <redco/tree.h>

#include <c10/core/Device.h>

#include <memory>
#include <vector>

namespace redco {

/// The device of the first tensor, or the CPU.
at::Device device_of(const Tree& tree);

/// The tree with its tensors on `device`; the very same tree where they are there already.
Tree to_device(Tree tree, at::Device device);

/// A batch with its tensors split over dp, where their first dimension is that of the examples.
Tree split_batch(const Tree& batch, int64_t n_examples, const std::shared_ptr<Mesh>& mesh);

/// The tensors as plain ones, on every process.
Tree gathered(const Tree& tree);

/// What sums over batches are divided by: the sum of their weights, or 1 where nothing counted, so
/// that a loss of 0 stays one.
at::Tensor divisor(const at::Tensor& weight_sum);

/// first, first + 1, ..., last - 1.
std::vector<int64_t> index_range(int64_t first, int64_t last);

}  // namespace redco
