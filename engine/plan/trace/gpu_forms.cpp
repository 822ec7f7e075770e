// Operators whose parts LibTorch chooses by the device. Plans are made on CPU tensors without
// values; these stand in for the choice on a GPU.

#include "recorder.h"

#include <redco/detail/planned_device.h>
#include <redco/plan.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/library.h>

#include <map>
#include <string>
#include <tuple>

namespace redco {

namespace {

// A GPU has one kernel, which keeps what layer norm keeps. On a CPU each square and mean is kept.
at::Tensor rms_norm(const at::Tensor& input, c10::SymIntArrayRef normalized_shape,
                    const std::optional<at::Tensor>& weight, std::optional<double> eps) {
  return std::get<0>(
      at::native_layer_norm_symint(input, normalized_shape, weight, {}, eps.value_or(1e-5)));
}

// Only GPUs have a fused kernel for a bias that is trained.
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
      "rms_norm_on_gpu(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, "
      "float? eps=None) -> Tensor",
      torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, &rms_norm));
  m.def(
      "attention_on_gpu(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, "
      "float dropout_p=0.0, bool is_causal=False, *, float? scale=None, bool enable_gqa=False) "
      "-> Tensor",
      torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, &attention));
}

}  // namespace

const c10::OperatorHandle& planned_form(const c10::OperatorHandle& handle) {
  if (planned_device() != c10::kCUDA || plan::Recorder::current() == nullptr) return handle;
  static const std::map<std::string, c10::OperatorHandle> forms = [] {
    auto& dispatcher = c10::Dispatcher::singleton();
    return std::map<std::string, c10::OperatorHandle>{
        {"aten::rms_norm", dispatcher.findSchemaOrThrow("redco::rms_norm_on_gpu", "")},
        {"aten::scaled_dot_product_attention",
         dispatcher.findSchemaOrThrow("redco::attention_on_gpu", "")}};
  }();
  auto found = forms.find(handle.operator_name().name);
  return found == forms.end() ? handle : found->second;
}

}  // namespace redco
