// Calls operators on tensors that have shapes and no values.

#include "on_meta.h"

#include "map_tensors.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include <utility>

namespace redco::sharding {

namespace {

// Returns zeros, with the same strides if these are dense, because kernels may check strides.
at::Tensor with_any_values(const at::Tensor& tensor) {
  if (!tensor.is_meta()) return tensor;
  at::TensorOptions options = tensor.options().device(at::kCPU);
  if (!tensor.is_non_overlapping_and_dense()) return at::zeros(tensor.sizes(), options);
  return at::empty_strided(tensor.sizes(), tensor.strides(), options).zero_();
}

}  // namespace

void call_without_values(torch::jit::Stack& stack,
                         const std::function<void(torch::jit::Stack&)>& function) {
  for (c10::IValue& value : stack) map_tensors(value, on_meta);
  torch::jit::Stack again = stack;
  // Replaces a device argument too, as of a copy to another dtype.
  for (c10::IValue& value : stack)
    if (value.isDevice()) value = c10::Device(c10::kMeta);
  try {
    function(stack);
    return;
  } catch (const c10::Error&) {
    // Some operators compute values to find shapes. Runs the whole call on zeros, which fit each
    // other: zeros for a single operator might not, such as labels for a given range of classes.
    stack = std::move(again);
  }
  for (c10::IValue& value : stack) map_tensors(value, with_any_values);
  function(stack);
  for (c10::IValue& value : stack) map_tensors(value, on_meta);
}

}  // namespace redco::sharding
