// A step of AdamW whose moments have 8 bits.

#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace redco::kernels {

/// The elements of a block, which share a scale: neighbours of the row-major parameter, across its
/// rows.
constexpr int64_t moment_block = 256;

/// The 256 numbers between which moments are rounded, ascending, float32: bitsandbytes' dynamic
/// map.
REDCO_API const at::Tensor& dynamic_map(bool is_signed);

/// A parameter and its moments, or the part of all of them that a process holds.
struct Adamw8bitParam {
  at::Tensor param, grad;          ///< floats of one shape
  at::Tensor exp_avg, exp_avg_sq;  ///< uint8, of that shape: places in dynamic_map
  at::Tensor absmax;               ///< float32 [2, blocks of the whole parameter]: their scales
  /// For each dimension the indices of the whole parameter that are here, and its size.
  std::vector<at::Tensor> indices;
  std::vector<int64_t> sizes;

  /// Of a whole parameter.
  REDCO_API static std::vector<at::Tensor> all_indices(at::IntArrayRef sizes);
};

struct Adamw8bitOptions {
  at::Tensor step;  ///< 0-dim: the number of this step, from 1
  double learning_rate, beta1, beta2, weight_decay, eps;
};

/// Performs a step in place. `reduce` is called once with all new scales of this process's parts
/// and makes them the maximum over the processes. With `is_plain`, LibTorch's operators are used on
/// a CPU, too, as they are on other devices.
REDCO_API void adamw8bit_step(std::vector<Adamw8bitParam> params, const Adamw8bitOptions& options,
                              const std::function<void(at::Tensor& absmax)>& reduce,
                              bool is_plain = false);

}  // namespace redco::kernels
