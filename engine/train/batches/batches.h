#pragma once

#include <redco/dataset.h>
#include <redco/deployer.h>
#include <redco/mesh.h>
#include <redco/sharding.h>
#include <redco/tree.h>

#include <c10/core/Device.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace redco::train {

/// The device of the first tensor, or the CPU.
at::Device device_of(const Tree& tree);

/// The tree with its tensors on `device`; the same tree if they are already there.
Tree to_device(Tree tree, at::Device device);

/// A copy of a batch on `device`: a loss_fn may change its batch in place, and a batch may be a
/// view of the script's data.
Tree own_batch(const Tree& batch, at::Device device);

/// The placements of a tensor of a batch with a row for each example: they split its examples, and
/// its positions if there are any. Throws Error for a dimension of positions that it does not have.
Placements placements_of_rows(const std::string& path, const at::Tensor& tensor,
                              const ContextDims& context_dims, const Mesh& mesh);

/// The tree with its real floating-point tensors cast to `dtype`.
Tree in_dtype(const Tree& tree, at::ScalarType dtype);

/// Copies a loss_fn's in-place changes of untrained parameters, such as running statistics, from
/// the copies that `in_dtype` made back to the masters.
void take_back(const Tree& masters, const Tree& copies);

/// Throws Error, which begins with `what`, for an empty dataset.
void check_examples(const char* what, const Dataset& examples);

/// Returns the batch of the examples with these indices. Its tensors are on `device`, and split
/// by examples and by positions if their first dimension is that of the examples.
Tree make_batch(const Dataset& examples, std::span<const int64_t> indices, Collate collate,
                at::Device device, const std::shared_ptr<Mesh>& mesh);

/// Returns the batch that is traced through a model to decide its layout: the first examples, the
/// same on all processes, so that all choose the same layout.
Tree layout_batch(const Dataset& examples, int64_t per_device_batch_size, Collate collate,
                  at::Device device, const Deployer& deployer);

/// The same tree in other memory. The pass that finds a layout may be repeated, and the user's
/// function may change its batch in place.
Tree copied(const Tree& tree);

/// Gathers the tensors, so that every process has them as plain ones.
Tree gathered(const Tree& tree);

/// Whether a metric is a sum and a count, [2], which add up over micro-batches. Others are means.
bool is_ratio(const at::Tensor& metric);

/// The divisor of sums over batches: the sum of their weights, or 1 if that is 0, so that a loss of
/// 0 stays 0.
at::Tensor divisor(const at::Tensor& weight_sum);

/// first, first + 1, ..., last - 1.
std::vector<int64_t> index_range(int64_t first, int64_t last);

}  // namespace redco::train
