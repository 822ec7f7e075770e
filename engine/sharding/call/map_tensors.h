// Tensors among the arguments and results of an operator.

#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty_strided.h>

#include <utility>

namespace redco::sharding {

/// Replaces each defined tensor of a value, which may be a list, by `function` of it.
template <class Function>
void map_tensors(c10::IValue& value, const Function& function) {
  auto mapped = [&](at::Tensor tensor) {
    return tensor.defined() ? function(std::move(tensor)) : tensor;
  };
  if (value.isTensor()) {
    value = mapped(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(mapped(tensor));
    value = list;
  } else if (value.isList()) {
    c10::List<c10::IValue> list = value.toList().copy();
    for (size_t i = 0; i < list.size(); ++i) {
      c10::IValue element = list.get(i);
      if (element.isTensor()) list.set(i, mapped(element.toTensor()));
    }
    value = list;
  }
}

/// A tensor of the device meta with the sizes and strides of this one; a meta tensor itself.
inline at::Tensor on_meta(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_meta()) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

}  // namespace redco::sharding
