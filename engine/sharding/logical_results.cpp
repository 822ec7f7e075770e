#include "logical_results.h"

#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace redco {

namespace {

at::Tensor without_memory(const at::Tensor& tensor) {
  int64_t extent = 1;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim)
    extent += (std::max<int64_t>(tensor.size(dim), 1) - 1) * tensor.stride(dim);
  at::TensorOptions options = at::TensorOptions(tensor.dtype()).device(at::kMeta);
  at::Tensor memory = at::empty_strided({tensor.storage_offset() + extent}, {1}, options);
  at::Tensor result = memory.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  result._set_conj(tensor.is_conj());
  result._set_neg(tensor.is_neg());
  return result;
}

bool shares_elements(const at::Tensor& tensor) {
  for (int64_t dim = 0; dim < tensor.dim(); ++dim)
    if (tensor.stride(dim) == 0 && tensor.size(dim) > 1) return true;
  return false;
}

}  // namespace

std::vector<std::optional<Geometry>> logical_results(const Call& call) {
  // A run for the sizes alone must draw no numbers.
  if (call.op.handle.hasTag(at::Tag::nondeterministic_seeded)) return {};
  torch::jit::Stack stack(call.arguments.begin(), call.arguments.end());
  std::vector<at::Tensor> tensors;
  for (const TensorArgument& argument : call.tensors)
    tensors.push_back(without_memory(argument.tensor));
  set_tensors(call, tensors, stack);
  for (c10::IValue& value : stack)
    if (value.isDevice()) value = c10::Device(c10::kMeta);
  try {
    call.op.handle.callBoxed(&stack);
  } catch (const c10::NotImplementedError&) {
    return {};
  } catch (const c10::Error&) {
    if (call.op.is_view || call.op.is_inplace_view) throw;
    for (const TensorArgument& argument : call.tensors)
      if (argument.is_written && shares_elements(argument.tensor)) throw;
    return {};
  }
  std::vector<std::optional<Geometry>> results;
  auto add = [&](const at::Tensor& tensor, bool is_new) {
    results.emplace_back();
    if (!is_new || !tensor.defined()) return;
    results.back() = geometry_of(tensor);
    if (!call.op.is_view && !call.op.is_inplace_view) results.back()->offset = 0;
  };
  for (size_t i = 0; i < stack.size(); ++i) {
    // A written argument is returned as it was given.
    bool is_new = call.op.returned[i] < 0 || call.op.is_inplace_view;
    if (stack[i].isTensor())
      add(stack[i].toTensor(), is_new);
    else if (stack[i].isTensorList())
      for (const at::Tensor& tensor : stack[i].toTensorVector()) add(tensor, is_new);
    else
      results.emplace_back();
  }
  return results;
}

}  // namespace redco
