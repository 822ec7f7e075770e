#pragma once

#include <redco/tree.h>

#include <c10/core/Device.h>

#include <vector>

namespace redco {

/// The device of the first tensor, or the CPU.
at::Device device_of(const Tree& tree);

/// The tree with its tensors on `device`; the very same tree where they are there already.
Tree to_device(Tree tree, at::Device device);

/// What sums over batches are divided by: the sum of their weights, or 1 where nothing counted, so
/// that a loss of 0 stays one.
at::Tensor divisor(const at::Tensor& weight_sum);

/// first, first + 1, ..., last - 1.
std::vector<int64_t> index_range(int64_t first, int64_t last);

}  // namespace redco
