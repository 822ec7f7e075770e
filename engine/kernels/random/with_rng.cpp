// Passes the current rng to random operators. WithRng enables DeferredInit, a dispatch key above
// autograd on which LibTorch registers nothing; the operators registered here use it to insert the
// rng.

#include <redco/error.h>
#include <redco/random.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_dropout.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

namespace redco {

namespace {

thread_local at::Generator current_rng;

constexpr c10::DispatchKeySet below_this(c10::DispatchKeySet::FULL_AFTER,
                                         c10::DispatchKey::DeferredInit);

// The position of an operator's generator argument.
std::optional<size_t> generator_index(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].name() == "generator") return i;
  return std::nullopt;
}

// Whether an argument is on another device than the CPU and has memory.
bool is_elsewhere(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return false;
  const at::Tensor& tensor = value.toTensor();
  return !tensor.is_cpu() && !tensor.is_meta() && tensor.has_storage();
}

// Draws from PyTorch's CPU generator for tensors on another device: draws on the CPU and copies the
// numbers. LibTorch raises an error for such a call, and draws other numbers on each kind of
// device.
void draw_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  torch::jit::Stack given = torch::jit::pop(*stack, schema.arguments().size()), copies = given;
  c10::Device device = c10::kCPU;
  for (c10::IValue& value : copies) {
    if (!is_elsewhere(value)) continue;
    device = value.toTensor().device();
    value = value.toTensor().cpu();
  }
  torch::jit::Stack results = copies;
  op.callBoxed(results);
  for (size_t i = 0; i < given.size(); ++i) {
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite() || !is_elsewhere(given[i])) continue;
    given[i].toTensor().copy_(copies[i].toTensor());
    for (c10::IValue& result : results)
      if (result.toTensor().is_same(copies[i].toTensor())) result = given[i];
  }
  for (c10::IValue& result : results) stack->emplace_back(result.toTensor().to(device));
}

// Passes the current rng to an operator without one. A boxed call does not dispatch on its
// generator, so its key set is added here.
void supply_rng(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  c10::IValue& rng =
      torch::jit::peek(*stack, *generator_index(op.schema()), op.schema().arguments().size());
  if (rng.isNone() && current_rng.defined()) rng = current_rng;
  if (!rng.isNone() && rng.toGenerator().defined() && rng.toGenerator().device().is_cpu()) {
    auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
    if (std::any_of(arguments.begin(), arguments.end(), is_elsewhere))
      return draw_on_cpu(op, stack);
  }
  keys = keys & below_this;
  if (!rng.isNone() && rng.toGenerator().defined()) keys = keys | rng.toGenerator().key_set();
  op.redispatchBoxed(keys, stack);
}

// On a GPU dropout is one kernel with its own generator; here it is composed of operators, which
// autograd supports as well.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p,
                                                  std::optional<bool> train) {
  at::Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
  if (!train.value_or(true)) return {input.clone(), mask.fill_(true)};
  mask.bernoulli_(1 - p);
  return {input * mask * (p < 1 ? 1 / (1 - p) : 0.0), mask};
}

}  // namespace

WithRng::WithRng(at::Generator rng)
    : outer_(rng.defined() ? std::exchange(current_rng, std::move(rng)) : current_rng),
      include_(c10::DispatchKey::DeferredInit) {}

WithRng::~WithRng() { current_rng = std::move(outer_); }

const at::Generator& WithRng::current() { return current_rng; }

TORCH_LIBRARY_IMPL(_, DeferredInit, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, DeferredInit, m) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    auto op = dispatcher.findSchema(name);
    if (op && generator_index(op->schema()))
      m.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&supply_rng>());
  }
  m.impl("native_dropout", native_dropout);
}

}  // namespace redco
