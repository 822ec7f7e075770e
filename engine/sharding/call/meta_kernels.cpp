// Kernels on the meta device for operators that have none in LibTorch without Python. A few
// kernels, which large models call, compute shapes. Operators without results do nothing. All
// others run on the CPU, with one element that stands for all.

#include "meta_kernels.h"

#include "execution.h"
#include "map_tensors.h"

#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

namespace redco::sharding {

namespace {

using torch::jit::Stack;

// Small enough to compute with, and large enough not to broadcast.
constexpr int64_t few = 2;

bool is_dispatched(const c10::OperatorHandle& op) {
  using Key = c10::DispatchKey;
  for (Key key : {Key::Meta, Key::CompositeExplicitAutograd, Key::CompositeImplicitAutograd,
                  Key::CompositeExplicitAutogradNonFunctional})
    if (op.hasKernelForDispatchKey(key)) return true;
  return false;
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

// Refuses a kernel in runs, because some of its strides differ from those of the CPU's kernels. A
// run takes the exact strides from a real kernel; a plan prefers to be fast.
void refuse_in_runs(const std::string& name) {
  const bool is_planning = plain_calls() != nullptr;
  TORCH_CHECK_NOT_IMPLEMENTED(is_planning || !execution().has_values(), name,
                              ": there is no kernel for the device meta");
}

void refuse_with_values(const c10::OperatorHandle& op) {
  TORCH_CHECK_NOT_IMPLEMENTED(!execution().has_values(), c10::toString(op.operator_name()),
                              ": there is no kernel for the device meta");
}

// Replaces each meta tensor, and a meta device.
template <class Function>
void replace(c10::IValue& value, const Function& function) {
  map_tensors(value, [&](const at::Tensor& tensor) {
    return tensor.is_meta() ? function(tensor) : tensor;
  });
  if (value.isDevice()) value = c10::Device(c10::kCPU);
}

// Returns zeros in the shape of a tensor: one expanded element, or all elements.
at::Tensor zeros_like(const at::Tensor& tensor, bool is_expanded) {
  at::TensorOptions options = tensor.options().device(at::kCPU);
  if (is_expanded) return at::zeros({}, options).expand(tensor.sizes());
  at::Tensor zeros = at::empty_strided(tensor.sizes(), tensor.strides(), options);
  return zeros.zero_();
}

// Returns the tensor with each dimension cut to `few` elements, in the same memory order.
at::Tensor shrunk(const at::Tensor& tensor) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  std::vector<int64_t> strides(sizes.size());
  std::vector<size_t> order(sizes.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return tensor.stride(int64_t(a)) < tensor.stride(int64_t(b));
  });
  int64_t stride = 1;
  for (size_t dim : order) {
    sizes[dim] = std::min(sizes[dim], few);
    if (tensor.stride(int64_t(dim)) == 0 && tensor.size(int64_t(dim)) > 1) continue;  // expanded
    strides[dim] = stride;
    stride *= std::max<int64_t>(sizes[dim], 1);
  }
  at::TensorOptions options = tensor.options().device(at::kCPU);
  return at::empty_strided(sizes, strides, options).zero_();
}

// Returns a dense tensor of these sizes, in the memory order of `like`.
at::Tensor grown(const at::Tensor& like, at::IntArrayRef sizes) {
  std::vector<size_t> order(sizes.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return like.stride(int64_t(a)) > like.stride(int64_t(b));
  });
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = stride;
    stride *= std::max<int64_t>(sizes[order[i]], 1);
  }
  return at::empty_strided(sizes, strides, like.options().device(at::kMeta));
}

// Moves the results to the meta device, and returns the given tensors in the place of written ones.
template <class Make>
void return_results(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& given,
                    Stack* stack, const Make& make) {
  size_t n = schema.returns().size(), base = stack->size() - n;
  for (size_t i = 0; i < n; ++i) {
    const c10::AliasInfo* alias = schema.returns()[i].alias_info();
    c10::IValue& value = (*stack)[base + i];
    if (!alias || !alias->isWrite()) {
      if (value.isTensor()) {
        if (value.toTensor().defined()) value = make(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& tensor : value.toTensorVector())
          list.push_back(tensor.defined() ? make(tensor) : tensor);
        value = list;
      }
      continue;
    }
    for (size_t a = 0; a < given.size(); ++a) {
      const c10::AliasInfo* other = schema.arguments()[a].alias_info();
      if (other && other->isWrite() && other->beforeSets() == alias->beforeSets()) value = given[a];
    }
  }
}

std::vector<c10::IValue> arguments_of(const c10::OperatorHandle& op, const Stack& stack) {
  size_t n = op.schema().arguments().size();
  return {stack.end() - std::ptrdiff_t(n), stack.end()};
}

// Runs an elementwise operator on few elements; its result has the broadcast sizes.
void elementwise(const c10::OperatorHandle& op, Stack* stack) {
  refuse_with_values(op);
  std::vector<c10::IValue> given = arguments_of(op, *stack);
  size_t first = stack->size() - given.size();
  std::vector<int64_t> sizes;
  at::Tensor out;
  for (size_t i = 0; i < given.size(); ++i) {
    const c10::Argument& argument = op.schema().arguments()[i];
    if (given[i].isTensor() && given[i].toTensor().defined()) {
      at::Tensor tensor = given[i].toTensor();
      if (is_written(argument) && argument.name() == "out")
        out = tensor;
      else
        sizes = at::infer_size(sizes, tensor.sizes());
    }
    replace((*stack)[first + i], shrunk);
  }
  // A plain tensor keeps its size above: cuts it too, so that no tensor is longer than `few`.
  for (size_t i = 0; i < given.size(); ++i) {
    c10::IValue& value = (*stack)[first + i];
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().numel() > 1 &&
        !given[i].toTensor().is_meta())
      value = shrunk(value.toTensor());
  }
  op.callBoxed(stack);
  if (out.defined() && out.sizes() != at::IntArrayRef(sizes)) out.resize_(sizes);
  return_results(op.schema(), given, stack,
                 [&](const at::Tensor& tensor) { return grown(tensor, sizes); });
}

// Whether an operator is elementwise, or is the form with `out` of one that is.
bool is_elementwise(const c10::OperatorHandle& op) {
  if (op.hasTag(at::Tag::pointwise)) return true;
  std::string overload = op.operator_name().overload_name;
  if (!overload.ends_with("out")) return false;
  overload.resize(overload.size() - std::string_view("out").size());
  if (overload.ends_with("_")) overload.pop_back();
  auto without_out = c10::Dispatcher::singleton().findSchema({op.operator_name().name, overload});
  return without_out && without_out->hasTag(at::Tag::pointwise);
}

// Drops the arguments of an operator that only writes to them, such as an optimizer's fused update.
void write_only(const c10::OperatorHandle& op, Stack* stack) {
  refuse_with_values(op);
  torch::jit::drop(*stack, op.schema().arguments().size());
}

void on_cpu(const c10::OperatorHandle& op, Stack* stack) {
  refuse_with_values(op);
  execution().ran_on_zeros(c10::toString(op.operator_name()));
  std::vector<c10::IValue> given = arguments_of(op, *stack);
  size_t first = stack->size() - given.size();
  // Kernels with a state, such as oneDNN's LSTM, read memory and ignore the strides.
  const bool has_state = known_operator(op).has_state;
  for (size_t i = 0; i < given.size(); ++i)
    replace((*stack)[first + i], [&](const at::Tensor& tensor) {
      return zeros_like(tensor, !has_state && !is_written(op.schema().arguments()[i]));
    });
  std::vector<c10::IValue> ran = arguments_of(op, *stack);
  op.callBoxed(stack);
  // The operator may have resized its written arguments.
  for (size_t i = 0; i < given.size(); ++i) {
    if (!is_written(op.schema().arguments()[i]) || !given[i].isTensor()) continue;
    at::Tensor own = given[i].toTensor();
    if (own.defined() && own.is_meta() && own.sizes() != ran[i].toTensor().sizes())
      own.resize_(ran[i].toTensor().sizes());
  }
  return_results(op.schema(), given, stack, on_meta);
}

// Returns 1 for a value that a script reads, because nobody knows the value.
at::Scalar local_scalar(const at::Tensor& self) {
  TORCH_CHECK_NOT_IMPLEMENTED(!execution().has_values(),
                              "a tensor of the device meta has no value");
  execution().read_value();
  if (self.is_floating_point()) return 1.0;
  return self.scalar_type() == at::kBool ? at::Scalar(true) : at::Scalar(1);
}

std::tuple<at::Tensor, at::Tensor> attention(const at::Tensor& query, const at::Tensor& key,
                                             const at::Tensor& value, double, bool,
                                             const std::optional<at::Tensor>&,
                                             std::optional<double>) {
  refuse_in_runs("attention");
  auto type = at::toOpMathType(query.scalar_type());
  int64_t batch = query.size(0), heads = query.size(1), length = query.size(2);
  // Like the kernel, puts the heads of a position next to each other in memory.
  at::Tensor output = at::empty({batch, length, heads, value.size(3)}, query.options());
  at::Tensor sums = at::empty({batch, length, heads}, query.options().dtype(type));
  return {output.transpose(1, 2), sums.transpose(1, 2)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(
    const at::Tensor&, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor&, const at::Tensor&, double, bool, const std::optional<at::Tensor>&,
    std::optional<double>) {
  refuse_in_runs("the backward pass of attention");
  auto like = [](const at::Tensor& tensor) {
    at::Tensor by_position = at::empty(
        {tensor.size(0), tensor.size(2), tensor.size(1), tensor.size(3)}, tensor.options());
    return by_position.transpose(1, 2);
  };
  return {like(query), like(key), like(value)};
}

// GPU kernels for attention with a bias; see plan/gpu_forms.cpp.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> efficient_attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const std::optional<at::Tensor>&, bool, double, bool, std::optional<double>) {
  constexpr int64_t alignment = 32;
  int64_t length = (query.size(2) + alignment - 1) / alignment * alignment;
  at::Tensor output = std::get<0>(attention(query, key, value, 0, false, {}, {}));
  at::Tensor sums =
      at::empty({query.size(0), query.size(1), length}, query.options().dtype(at::kFloat));
  at::Tensor seed = at::empty({}, query.options().dtype(at::kLong));
  return {output, sums, seed, at::empty_like(seed)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> efficient_attention_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& bias, const at::Tensor& out, const at::Tensor& sums, const at::Tensor&,
    const at::Tensor&, double, std::array<bool, 4> needed, bool, std::optional<double>) {
  auto [d_query, d_key, d_value] =
      attention_backward(grad, query, key, value, out, sums, 0, false, {}, {});
  return {d_query, d_key, d_value,
          needed[3] ? at::empty(bias.sizes(), bias.options()) : at::Tensor()};
}

at::Tensor embedding_backward(const at::Tensor& grad, const at::Tensor&, c10::SymInt n_rows,
                              c10::SymInt, bool) {
  refuse_in_runs("embedding_dense_backward");
  return at::empty({n_rows.expect_int(), grad.size(-1)}, grad.options());
}

at::Tensor index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  refuse_in_runs("index_select");
  if (self.dim() == 0) return at::empty({}, self.options());
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes[size_t(at::maybe_wrap_dim(dim, self.dim()))] = index.numel();
  return at::empty(sizes, self.options());
}

at::Tensor linear_few_rows(const at::Tensor& x, const at::Tensor& weight) {
  refuse_in_runs("linear_few_rows");
  return at::empty({x.size(0), weight.size(0)}, x.options());
}

// Convolution's sizes, as ATen/native/ConvUtils.h has them. Arguments of the operator: input,
// weight, bias, stride, padding, dilation, transposed, output_padding, groups.
void convolution(const c10::OperatorHandle& op, Stack* stack) {
  refuse_with_values(op);
  std::vector<c10::IValue> given = arguments_of(op, *stack);
  at::Tensor input = given[0].toTensor(), weight = given[1].toTensor();
  std::vector<int64_t> stride = given[3].toIntVector(), padding = given[4].toIntVector(),
                       dilation = given[5].toIntVector(), added = given[7].toIntVector();
  bool is_transposed = given[6].toBool();
  std::vector<int64_t> sizes{input.size(0),
                             is_transposed ? weight.size(1) * given[8].toInt() : weight.size(0)};
  for (size_t i = 0; i < stride.size(); ++i) {
    int64_t length = input.size(int64_t(i) + 2);
    int64_t reach = dilation[i] * (weight.size(int64_t(i) + 2) - 1);
    sizes.push_back(is_transposed ? (length - 1) * stride[i] - 2 * padding[i] + reach + added[i] + 1
                                  : (length + 2 * padding[i] - reach - 1) / stride[i] + 1);
  }
  torch::jit::drop(*stack, given.size());
  stack->emplace_back(at::empty(sizes, input.options(), input.suggest_memory_format()));
}

// Arguments: grad_output, input, weight, ..., output_mask.
void convolution_backward(const c10::OperatorHandle& op, Stack* stack) {
  refuse_with_values(op);
  std::vector<c10::IValue> given = arguments_of(op, *stack);
  at::Tensor grad = given[0].toTensor();
  auto mask = given.back().toBoolList();
  torch::jit::drop(*stack, given.size());
  for (size_t i = 0; i < 2; ++i)
    stack->emplace_back(mask.get(i) ? at::empty_like(given[i + 1].toTensor()) : at::Tensor());
  stack->emplace_back(mask.get(2) ? at::empty({grad.size(1)}, grad.options()) : at::Tensor());
}

// The statistics of a norm have the dtype of the input, or float32 if the input has 16 bits and the
// weights float32 (at::native::param_scalar_type).
at::Tensor statistics(const at::Tensor& input, const c10::IValue& weight, at::IntArrayRef sizes) {
  bool is_mixed = weight.isTensor() && weight.toTensor().defined() &&
                  weight.toTensor().scalar_type() != input.scalar_type();
  return at::empty(sizes, input.options().dtype(is_mixed ? at::kFloat : input.scalar_type()));
}

void return_norm(const c10::OperatorHandle& op, Stack* stack, at::Tensor y, at::IntArrayRef sizes,
                 size_t weight) {
  std::vector<c10::IValue> given = arguments_of(op, *stack);
  torch::jit::drop(*stack, given.size());
  at::Tensor input = given[0].toTensor();
  stack->emplace_back(std::move(y));
  for (int i = 0; i < 2; ++i) stack->emplace_back(statistics(input, given[weight], sizes));
}

// Arguments: input, normalized_shape, weight, ...
void layer_norm(const c10::OperatorHandle& op, Stack* stack) {
  std::vector<c10::IValue> given = arguments_of(op, *stack);
  at::Tensor input = given[0].toTensor();
  std::vector<int64_t> sizes = input.sizes().vec();
  size_t n = given[1].toIntVector().size();
  std::fill(sizes.end() - std::ptrdiff_t(n), sizes.end(), 1);
  return_norm(op, stack, at::empty_like(input, at::MemoryFormat::Contiguous), sizes, 2);
}

// Arguments: input, weight, bias, N, C, HxW, group, ...
void group_norm(const c10::OperatorHandle& op, Stack* stack) {
  std::vector<c10::IValue> given = arguments_of(op, *stack);
  at::Tensor input = given[0].toTensor();
  std::vector<int64_t> sizes{given[3].toInt(), given[6].toInt()};
  return_norm(op, stack, at::empty_like(input, input.suggest_memory_format()), sizes, 1);
}

// Arguments: grad_output, input, ..., output_mask; the weight is the argument `weight`. Returns the
// gradients of input, weight and bias.
template <size_t weight>
void norm_backward(const c10::OperatorHandle& op, Stack* stack) {
  refuse_in_runs(c10::toString(op.operator_name()));
  std::vector<c10::IValue> given = arguments_of(op, *stack);
  torch::jit::drop(*stack, given.size());
  auto mask = given.back().toBoolList();
  at::Tensor input = given[1].toTensor();
  stack->emplace_back(mask.get(0) ? at::empty_like(input, input.suggest_memory_format())
                                  : at::Tensor());
  for (size_t i = 1; i < 3; ++i)
    stack->emplace_back(mask.get(i) ? at::empty_like(given[weight].toTensor()) : at::Tensor());
}

}  // namespace

void add_meta_kernels() {
  [[maybe_unused]] static const bool are_added = [] {
    static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__,
                                  __LINE__);
    auto& dispatcher = c10::Dispatcher::singleton();
    std::vector<c10::OperatorHandle> lacking;
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      if (!name.name.starts_with("aten::")) continue;
      auto op = dispatcher.findSchema(name);
      if (op && op->hasKernelForDispatchKey(c10::DispatchKey::CPU) && !is_dispatched(*op))
        lacking.push_back(*op);
    }
    static const std::map<std::string, torch::CppFunction (*)()> own = {
        {"_local_scalar_dense", [] { return torch::CppFunction(TORCH_FN(local_scalar)); }},
        {"_scaled_dot_product_flash_attention_for_cpu",
         [] { return torch::CppFunction(TORCH_FN(attention)); }},
        {"_scaled_dot_product_flash_attention_for_cpu_backward",
         [] { return torch::CppFunction(TORCH_FN(attention_backward)); }},
        {"embedding_dense_backward",
         [] { return torch::CppFunction(TORCH_FN(embedding_backward)); }},
        {"native_layer_norm_backward",
         [] { return torch::CppFunction::makeFromBoxedFunction<&norm_backward<5>>(); }},
        {"native_group_norm_backward",
         [] { return torch::CppFunction::makeFromBoxedFunction<&norm_backward<4>>(); }},
        {"index_select", [] { return torch::CppFunction(TORCH_FN(index_select)); }},
    };
    static torch::Library of_engine(torch::Library::IMPL, "redco", c10::DispatchKey::Meta, __FILE__,
                                    __LINE__);
    of_engine.impl("linear_few_rows", torch::CppFunction(TORCH_FN(linear_few_rows)));
    // LibTorch's convolution calls these on a device that it does not know.
    library.impl("convolution_overrideable",
                 torch::CppFunction::makeFromBoxedFunction<&convolution>());
    library.impl("convolution_backward_overrideable",
                 torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
    library.impl("_scaled_dot_product_efficient_attention",
                 torch::CppFunction(TORCH_FN(efficient_attention)));
    library.impl("_scaled_dot_product_efficient_attention_backward",
                 torch::CppFunction(TORCH_FN(efficient_attention_backward)));
    // LibTorch's own forms of these run on the CPU.
    library.impl("native_layer_norm", torch::CppFunction::makeFromBoxedFunction<&layer_norm>());
    library.impl("native_group_norm", torch::CppFunction::makeFromBoxedFunction<&group_norm>());
    for (const c10::OperatorHandle& op : lacking) {
      std::string name = c10::toString(op.operator_name()).substr(6);
      auto found = own.find(name);
      if (found != own.end())
        library.impl(name.c_str(), found->second());
      else if (op.schema().returns().empty())
        library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&write_only>());
      else if (is_elementwise(op))
        library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&elementwise>());
      else
        library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
    }
    return true;
  }();
}

}  // namespace redco::sharding
