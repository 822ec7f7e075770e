// Kernels for composite operators that read memory. LibTorch decomposes these above every dispatch
// key of a sharded tensor. Its decompositions read index values, ignore strides, call a separate
// kernel without gradients, write to plain tensors, or would move more.

#include "composites.h"

#include "../../core/libtorch_versions.h"
#include "../tensor/memory_format.h"
#include "../tensor/sharded_tensor.h"
#include "context_attention.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace redco::sharding {

void call_composite(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
}

namespace {

using torch::jit::Stack;

// Arguments whose values the kernels read, such as lengths and indices.
const std::unordered_map<std::string_view, std::vector<std::string_view>> read_arguments = {
    {"tensor_split.tensor_indices_or_sections", {"tensor_indices_or_sections"}},
    {"_pack_padded_sequence_backward", {"batch_sizes"}},
    {"_pad_packed_sequence", {"batch_sizes"}},
    {"lstm.data", {"batch_sizes"}},
    {"gru.data", {"batch_sizes"}},
    {"rnn_tanh.data", {"batch_sizes"}},
    {"rnn_relu.data", {"batch_sizes"}},
    {"ctc_loss.Tensor", {"input_lengths", "target_lengths"}},
};

// Gathers these arguments. Their kernels ignore strides.
void read_whole(const c10::OperatorHandle& op, Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  std::string name = schema.name().substr(schema.name().find("::") + 2);
  if (!schema.overload_name().empty()) name += "." + schema.overload_name();
  const auto& read = read_arguments.at(name);
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (std::find(read.begin(), read.end(), arguments[i].name()) == read.end()) continue;
    c10::IValue& value = torch::jit::peek(*stack, i, arguments.size());
    if (!value.isTensor()) continue;
    const at::Tensor& given = value.toTensor();
    value = (is_sharded(given) ? full(given) : given).contiguous();
  }
  call_composite(op, stack);
}

// LibTorch's backward on the CPU ignores the strides of the weight, and misreads the strides of
// some inputs, even of plain tensors.
void batch_norm(const c10::OperatorHandle& op, Stack* stack) {
  c10::IValue& input = torch::jit::peek(*stack, 0, op.schema().arguments().size());
  input = with_clear_format(input.toTensor());
  for (size_t i : {1, 2}) {  // weight, bias
    c10::IValue& value = torch::jit::peek(*stack, i, op.schema().arguments().size());
    if (value.isTensor()) value = value.toTensor().contiguous();
  }
  call_composite(op, stack);
}

// LibTorch's kernel without gradients walks through memory and returns a row-major result. Calls
// the dispatched operator that also returns indices instead.
void max_pool1d(const c10::OperatorHandle& op, Stack* stack) {
  const at::Tensor& self = torch::jit::peek(*stack, 0, op.schema().arguments().size()).toTensor();
  if (!is_sharded(self)) return call_composite(op, stack);
  static const c10::OperatorHandle with_indices =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::max_pool1d_with_indices", "");
  const bool is_recorded = self.requires_grad() && at::GradMode::is_enabled();
  with_indices.callBoxed(*stack);
  stack->pop_back();
  if (!is_recorded) stack->back() = stack->back().toTensor().contiguous();
}

// LibTorch selects only a single quantile in memory; for several it sorts with dispatched
// operators. So asks for the quantile twice.
void quantile(const c10::OperatorHandle& op, Stack* stack) {
  const size_t n = op.schema().arguments().size();
  const at::Tensor& self = torch::jit::peek(*stack, 0, n).toTensor();
  if (!selects_quantile_in_memory || !is_sharded(self)) return call_composite(op, stack);
  c10::IValue& q = torch::jit::peek(*stack, 1, n);
  const at::Tensor given =
      q.isTensor() ? q.toTensor() : at::scalar_tensor(q.toDouble(), self.options());
  if (given.dim() > 1 || given.numel() != 1) return call_composite(op, stack);
  q = given.reshape({1}).repeat({2});
  c10::Dispatcher::singleton().findSchemaOrThrow(op.schema().name().c_str(), "").callBoxed(*stack);
  const at::Tensor both = stack->back().toTensor();
  stack->back() = given.dim() == 0 ? both.select(0, 0) : both.narrow(0, 0, 1);
}

// LibTorch scatters into zeros that are not a sharded tensor, and the values of a pipeline stage
// cannot be written there.
at::Tensor value_selecting_reduction_backward(const at::Tensor& gradient, int64_t dim,
                                              const at::Tensor& indices, at::IntArrayRef sizes,
                                              bool keepdim) {
  const bool is_reduced = !keepdim && !sizes.empty();
  const at::Tensor values = is_reduced ? gradient.unsqueeze(dim) : gradient;
  return gradient.new_zeros(sizes).scatter(dim, is_reduced ? indices.unsqueeze(dim) : indices,
                                           values);
}

void add_attention(torch::Library& m) {
  m.impl("scaled_dot_product_attention",
         torch::CppFunction::makeFromBoxedFunction<&context_attention>());
}

void add_kernels(torch::Library& m) {
  for (const auto& [name, arguments] : read_arguments)
    m.impl(std::string(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&read_whole>());
  m.impl("batch_norm", torch::CppFunction::makeFromBoxedFunction<&batch_norm>());
  m.impl("value_selecting_reduction_backward", value_selecting_reduction_backward);
  m.impl("max_pool1d", torch::CppFunction::makeFromBoxedFunction<&max_pool1d>());
  for (const char* name : {"quantile", "quantile.scalar", "nanquantile", "nanquantile.scalar"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&quantile>());
  add_attention(m);
}

TORCH_LIBRARY_IMPL(aten, AutogradCPU, m) { add_kernels(m); }
TORCH_LIBRARY_IMPL(aten, AutogradCUDA, m) { add_kernels(m); }
TORCH_LIBRARY_IMPL(aten, AutogradMeta, m) { add_attention(m); }  // of plans

void add_segment_attention(torch::Library& m) {
  m.impl("segment_attention",
         torch::CppFunction::makeFromBoxedFunction<&context_segment_attention>());
}

TORCH_LIBRARY_IMPL(redco, AutogradCPU, m) { add_segment_attention(m); }
TORCH_LIBRARY_IMPL(redco, AutogradCUDA, m) { add_segment_attention(m); }
TORCH_LIBRARY_IMPL(redco, AutogradMeta, m) { add_segment_attention(m); }

}  // namespace

}  // namespace redco::sharding
