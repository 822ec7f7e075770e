// Operators that LibTorch decomposes in a way that depends on the device. Plans use CPU tensors
// without values, so these operators make the choice that LibTorch makes on a GPU.

#include "tracer.h"

#include <redco/detail/planned_device.h>
#include <redco/plan.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/library.h>

#include <tuple>

namespace redco {

namespace {

// Only GPUs have a fused kernel for attention with a trained bias.
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask, double dropout_p, bool is_causal,
                     std::optional<double> scale, bool enable_gqa) {
  bool is_trained = mask && mask->requires_grad() && query.dim() == 4;
  if (!is_trained || enable_gqa || query.scalar_type() == at::kDouble)
    return at::scaled_dot_product_attention(query, key, value, mask, dropout_p, is_causal, scale,
                                            enable_gqa);
  at::Tensor bias = mask->expand({query.size(0), query.size(1), query.size(2), key.size(2)});
  return std::get<0>(at::_scaled_dot_product_efficient_attention(
      query, key, value, bias, /*compute_log_sumexp=*/true, dropout_p, is_causal, scale));
}

TORCH_LIBRARY_FRAGMENT(redco, m) {
  m.def(
      "attention_on_gpu(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, "
      "float dropout_p=0.0, bool is_causal=False, *, float? scale=None, bool enable_gqa=False) "
      "-> Tensor",
      torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, &attention));
}

}  // namespace

const c10::OperatorHandle& planned_form(const c10::OperatorHandle& handle) {
  if (planned_device() != c10::kCUDA || plan::Tracer::current() == nullptr) return handle;
  if (handle.operator_name().name != "aten::scaled_dot_product_attention") return handle;
  static const c10::OperatorHandle form =
      c10::Dispatcher::singleton().findSchemaOrThrow("redco::attention_on_gpu", "");
  return form;
}

}  // namespace redco
