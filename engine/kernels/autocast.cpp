// Autocast with the GPU policy on all devices.

#include <redco/autocast.h>

#include <redco/error.h>

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>

namespace redco {

namespace {

using torch::jit::Stack;

// The number of active regions on this thread. Outside of them LibTorch's policy for CPUs applies,
// for host programs that use it.
thread_local int n_regions = 0;

void cast_arguments(Stack& stack, size_t n, at::ScalarType type) {
  for (size_t i = stack.size() - n; i < stack.size(); ++i) {
    if (stack[i].isTensor())
      stack[i] = at::autocast::cached_cast(type, stack[i].toTensor(), at::kCPU);
    else if (stack[i].isTensorList())
      stack[i] =
          at::autocast::cached_cast(type, at::TensorList(stack[i].toTensorVector()), at::kCPU);
  }
}

// Whether the caller specified the dtype of the result: sum(x, dtype).
bool has_dtype(const c10::OperatorHandle& op, const Stack& stack) {
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].name() == "dtype") return !stack[stack.size() - arguments.size() + i].isNone();
  return false;
}

bool has_eligible(const Stack& stack, size_t n, at::ScalarType type) {
  return std::any_of(stack.end() - int64_t(n), stack.end(), [&](const c10::IValue& value) {
    return value.isTensor() && at::autocast::is_eligible(value.toTensor(), at::kCPU) &&
           value.toTensor().scalar_type() == type;
  });
}

enum class Policy { lower, float32, widest };

template <Policy policy>
void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  constexpr auto here = c10::DispatchKey::AutocastCPU;
  if (n_regions == 0) {
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, here), stack);
    return;
  }
  c10::impl::ExcludeDispatchKeyGuard no_autocast(here);
  const size_t n = op.schema().arguments().size();
  const at::ScalarType lower = at::autocast::get_autocast_dtype(at::kCPU);
  if (policy == Policy::lower) {
    cast_arguments(*stack, n, lower);
  } else if (policy == Policy::widest) {
    cast_arguments(*stack, n, has_eligible(*stack, n, at::kFloat) ? at::kFloat : lower);
  } else if (!has_dtype(op, *stack)) {
    cast_arguments(*stack, n, at::kFloat);
  }
  op.callBoxed(stack);
}

// Operators that PyTorch casts on GPUs but not on CPUs, and attention's own softmax.
// clang-format off
constexpr const char* in_lower[] = {
    "_convolution", "convolution", "addmv", "addr", "mv", "einsum", "chain_matmul",
    "linalg_multi_dot", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"};
constexpr const char* in_float32[] = {
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p",
    "reciprocal", "rsqrt", "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar",
    "softplus", "layer_norm", "native_layer_norm", "group_norm", "frobenius_norm.dim",
    "nuclear_norm", "nuclear_norm.dim", "cosine_similarity", "dist", "pdist", "renorm",
    "logsumexp", "softmax.int", "_safe_softmax", "log_softmax.int", "cumprod", "cumsum",
    "sum", "sum.dim_IntList", "norm.Scalar", "norm.ScalarOpt_dim", "linalg_vector_norm",
    "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "upsample_nearest1d",
    "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d",
    "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
    "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"};
constexpr const char* in_widest[] = {
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "index_put", "tensordot",
    "scatter_add"};
// clang-format on

TORCH_LIBRARY_IMPL(aten, AutocastCPU, m) {
  for (const char* name : in_lower)
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run<Policy::lower>>());
  for (const char* name : in_float32)
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run<Policy::float32>>());
  for (const char* name : in_widest)
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run<Policy::widest>>());
}

}  // namespace

std::optional<c10::ScalarType> autocast_dtype(c10::DeviceType device) {
  if (!at::autocast::is_autocast_enabled(device)) return std::nullopt;
  return at::autocast::get_autocast_dtype(device);
}

Autocast::Autocast(c10::DeviceType device, std::optional<c10::ScalarType> dtype)
    : device_(device),
      was_enabled_(at::autocast::is_autocast_enabled(device)),
      was_cached_(at::autocast::is_autocast_cache_enabled()),
      was_dtype_(at::autocast::get_autocast_dtype(device)) {
  require(!dtype || *dtype == at::kHalf || *dtype == at::kBFloat16,
          "autocast: ", dtype.value_or(at::kFloat), " is not one of float16 and bfloat16");
  ++n_regions;
  at::autocast::set_autocast_enabled(device, dtype.has_value());
  if (dtype) at::autocast::set_autocast_dtype(device, *dtype);
  at::autocast::set_autocast_cache_enabled(false);
}

Autocast::~Autocast() {
  --n_regions;
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, was_dtype_);
  at::autocast::set_autocast_cache_enabled(was_cached_);
}

}  // namespace redco
