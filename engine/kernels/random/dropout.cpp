// Dropout in one pass. On a GPU backward draws the same numbers again, which takes less time and
// memory than keeping them.

#include "local_region.h"
#include "places.h"

#include <redco/detail/operator_interceptor.h>
#include <redco/detail/planned_device.h>
#include <redco/error.h>
#include <redco/nn.h>
#include <redco/random.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

namespace redco {

using namespace random;

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The operator for tensors that are not sharded. Also returns the factors, if they are kept.
std::tuple<at::Tensor, at::Tensor> local_dropout(const at::Tensor& x, double p, bool keeps_factors,
                                                 std::optional<at::Generator> generator) {
  // Allocates before the draw: if the allocation fails, nothing must be drawn.
  at::Tensor y = at::empty_like(x), factors;
  if (keeps_factors) factors = at::empty_like(x);
  const Stream stream = next_stream(x, generator.value_or(at::Generator()));
  if (!x.is_meta()) fill_dropout(y, factors, x, stream, p);
  return {y, factors};
}

TORCH_LIBRARY_FRAGMENT(redco, m) {
  m.def(
      "dropout(Tensor x, float p, bool keeps_factors, *, Generator? generator) -> (Tensor, Tensor)",
      torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &local_dropout),
      {at::Tag::pointwise, at::Tag::nondeterministic_seeded});
}

std::tuple<at::Tensor, at::Tensor> call_operator(const at::Tensor& x, double p, bool keeps_factors,
                                                 const at::Generator& rng) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("redco::dropout", "")
                             .typed<decltype(local_dropout)>();
  return op.call(x, p, keeps_factors, rng);
}

class Dropout : public torch::autograd::Function<Dropout> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, double p,
                            const at::Generator& rng) {
    // A CPU draws numbers in three times the time of the product.
    const c10::DeviceType device = planned_device().value_or(x.device().type());
    const bool keeps_factors = device == c10::kCPU || device == c10::kMeta;
    ctx->saved_data["p"] = p;
    if (!keeps_factors) ctx->saved_data["rng"] = rng.clone();
    auto [y, factors] = call_operator(x, p, keeps_factors, rng);
    ctx->save_for_backward({factors});
    return y;
  }

  // It is linear in x, so that this can be differentiated again.
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor factors = ctx->get_saved_variables()[0];
    if (factors.defined()) return {grads[0] * factors, {}, {}};
    return {dropout(grads[0], ctx->saved_data["p"].toDouble(),
                    ctx->saved_data["rng"].toGenerator().clone()),
            {},
            {}};
  }
};

}  // namespace

at::Tensor dropout(const at::Tensor& x, double p, const at::Generator& rng) {
  require(p >= 0 && p <= 1, "dropout: expected a probability from 0 to 1, got ", p);
  require(x.is_floating_point(), "dropout: expected a floating-point tensor, got ",
          x.scalar_type());
  if (at::functorch::maybeCurrentDynamicLayer() || counter_generator(rng) == nullptr) {
    at::Tensor kept = at::empty_like(x).bernoulli_(1 - p, rng);
    return x * kept.mul_(dropout_scale(p));
  }
  const at::Tensor given = intercepted({x})[0];
  if (!at::GradMode::is_enabled() || !given.requires_grad())
    return std::get<0>(call_operator(given, p, /*keeps_factors=*/false, rng));
  return Dropout::apply(given, p, rng);
}

}  // namespace redco
