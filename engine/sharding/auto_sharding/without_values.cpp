// Runs operators for their shapes alone.

#include "without_values.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include <utility>

namespace redco::sharding {

namespace {

at::Tensor without_values(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

// Zeros; kernels may check the strides.
at::Tensor with_any_values(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_meta()) return tensor;
  at::TensorOptions options = tensor.options().device(at::kCPU);
  if (!tensor.is_non_overlapping_and_dense()) return at::zeros(tensor.sizes(), options);
  return at::empty_strided(tensor.sizes(), tensor.strides(), options).zero_();
}

template <class Function>
void map_tensors(c10::IValue& value, const Function& function) {
  if (value.isTensor()) {
    value = function(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(function(tensor));
    value = list;
  } else if (value.isList()) {
    c10::List<c10::IValue> list = value.toList().copy();
    for (size_t i = 0; i < list.size(); ++i) {
      c10::IValue element = list.get(i);
      if (element.isTensor()) list.set(i, function(element.toTensor()));
    }
    value = list;
  }
}

}  // namespace

void call_without_values(torch::jit::Stack& stack,
                         const std::function<void(torch::jit::Stack&)>& function) {
  for (c10::IValue& value : stack)
    map_tensors(value, [](const at::Tensor& tensor) {
      return tensor.defined() && !tensor.is_meta() ? without_values(tensor) : tensor;
    });
  torch::jit::Stack again = stack;
  // A copy to another dtype names the device, too.
  for (c10::IValue& value : stack)
    if (value.isDevice()) value = c10::Device(c10::kMeta);
  try {
    function(stack);
    return;
  } catch (const c10::Error&) {
    // Some operators compute shapes together with values: run all of the call on zeros, which fit
    // each other. Zeros for each operator alone would not, such as labels and what is in their
    // range.
    stack = std::move(again);
  }
  for (c10::IValue& value : stack) map_tensors(value, with_any_values);
  function(stack);
  for (c10::IValue& value : stack)
    map_tensors(value, [](const at::Tensor& tensor) {
      return tensor.defined() ? without_values(tensor) : tensor;
    });
}

}  // namespace redco::sharding
