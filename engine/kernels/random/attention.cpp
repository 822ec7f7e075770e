// Uses LibTorch's math implementation of attention where the fused kernels do not suffice: these do
// not draw this program's random numbers, and have no second derivative. WithRng and PlainAttention
// enable DeferredInit, a dispatch key above autograd.

#include <redco/autocast.h>
#include <redco/detail/plain_attention.h>
#include <redco/random.h>

#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/scaled_dot_product_attention_ops.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <limits>
#include <optional>
#include <tuple>
#include <utility>

namespace redco {

namespace {

thread_local bool is_plain = false;

// Autocast comes after this key.
at::Tensor cast(const at::Tensor& tensor) {
  auto dtype = autocast_dtype(tensor.device().type());
  bool is_cast = dtype && tensor.is_floating_point() && tensor.scalar_type() != at::kDouble;
  return is_cast ? tensor.to(*dtype) : tensor;
}

at::Tensor attention(c10::DispatchKeySet keys, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const std::optional<at::Tensor>& mask,
                     double dropout_p, bool is_causal, std::optional<double> scale,
                     bool enable_gqa) {
  bool draws = dropout_p > 0 && WithRng::current().defined();
  if (!draws && !is_plain) {
    constexpr c10::DispatchKeySet below_this(c10::DispatchKeySet::FULL_AFTER,
                                             c10::DispatchKey::DeferredInit);
    return at::_ops::scaled_dot_product_attention::redispatch(
        keys & below_this, query, key, value, mask, dropout_p, is_causal, scale, enable_gqa);
  }
  at::Tensor q = cast(query);
  // The math implementation adds the mask; a boolean mask marks positions to attend to.
  std::optional<at::Tensor> added;
  if (mask && mask->defined())
    added = mask->scalar_type() == at::kBool
                ? at::zeros_like(*mask, q.options())
                      .masked_fill(mask->logical_not(), -std::numeric_limits<double>::infinity())
                : cast(*mask);
  return std::get<0>(at::_scaled_dot_product_attention_math(
      q, cast(key), cast(value), added, dropout_p, is_causal, {}, scale, enable_gqa));
}

}  // namespace

PlainAttention::PlainAttention()
    : outer_(std::exchange(is_plain, true)), include_(c10::DispatchKey::DeferredInit) {}

PlainAttention::~PlainAttention() { is_plain = outer_; }

bool PlainAttention::is_active() { return is_plain; }

TORCH_LIBRARY_IMPL(aten, DeferredInit, m) { m.impl("scaled_dot_product_attention", attention); }

}  // namespace redco
