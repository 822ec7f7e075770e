// Softmax and its dropout as one operator: attention in training, without the tensors between them.

#include "../cuda_kernels.h"
#include "fill.h"
#include "local_region.h"
#include "places.h"
#include "words_on_device.h"

#include <redco/detail/operator_interceptor.h>
#include <redco/detail/planned_device.h>
#include <redco/error.h>
#include <redco/nn.h>
#include <redco/random.h>

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/ops/_safe_softmax.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace redco::random {

extern const char* const softmax_dropout_source;  // softmax_dropout.cu

namespace {

constexpr uint64_t n_of_block = 4;  // numbers that are drawn at once
constexpr uint64_t most_threads = 256;

// Mirrors `MaskRows` of softmax_dropout.cu.
struct MaskRows {
  int n_dims;
  std::array<int64_t, on_device::most_dims> sizes, strides;
};

bool has_kernel(const at::Tensor& tensor) {
  return has_kernels_for(tensor) && begins_at_pack(tensor) &&
         tensor.size(-1) * tensor.element_size() % pack_bytes == 0;
}

void launch(const std::string& kernel, const at::Tensor& scores, int64_t n_units,
            void** arguments) {
  static CudaKernels kernels(softmax_dropout_source);
  const uint64_t n_threads =
      std::clamp(std::bit_ceil(uint64_t(n_units)), uint64_t{32}, most_threads);
  kernels.launch((kernel + kernel_suffix(scores.scalar_type())).c_str(), scores.device(),
                 {.x = scores.numel() / scores.size(-1), .n_threads = int(n_threads)}, arguments);
}

// Computes softmax and its dropout with one GPU kernel. `scores` and both results are dense; `mask`
// has the sizes of `scores`. Returns false and does nothing if there is no kernel: for other types,
// for rows that do not fill units of 16 bytes, and without NVRTC.
bool softmax_dropout_on_gpu(const at::Tensor& probs, const at::Tensor& dropped,
                            const at::Tensor& scores, const std::optional<at::Tensor>& mask,
                            double scale, const Stream& stream, double p) {
  if (!has_kernel(scores) || scores.dim() > int64_t(on_device::most_dims)) return false;
  const Places places(scores.sizes(), stream);
  bool is_aligned = uint64_t(places.first()) % n_of_block == 0;
  for (size_t d = 0; d < places.n_outer(); ++d)
    is_aligned &= uint64_t(places.stride(d)) % n_of_block == 0;
  if (!is_aligned) return false;
  MaskRows rows{};
  const void* of_mask = nullptr;
  at::Tensor dense;  // along the scores of a row
  bool is_boolean = false;
  if (mask) {
    dense = mask->stride(-1) == 1 ? *mask : mask->contiguous();
    of_mask = dense.const_data_ptr();
    is_boolean = dense.scalar_type() == at::kBool;
    rows.n_dims = int(dense.dim()) - 1;
    for (int d = 0; d < rows.n_dims; ++d) {
      rows.sizes[size_t(d)] = dense.size(d);
      rows.strides[size_t(d)] = dense.stride(d);
    }
  }
  const void* of_scores = scores.const_data_ptr();
  void *to_probs = probs.mutable_data_ptr(), *to_dropped = dropped.mutable_data_ptr();
  int64_t n_units = scores.size(-1) * scores.element_size() / pack_bytes;
  on_device::Words words(scores, stream, places);
  auto factor = float(scale), kept = float(dropout_factor(p, scores.scalar_type()));
  uint32_t last = last_kept(p);
  void* arguments[] = {&of_scores,  &of_mask, &is_boolean, &rows, &factor, &to_probs,
                       &to_dropped, &n_units, &words,      &last, &kept};
  launch("softmax_dropout_", scores, n_units, arguments);
  return true;
}

// The same for the gradient of the scores. All tensors are dense.
bool softmax_dropout_backward_on_gpu(const at::Tensor& d_scores, const at::Tensor& grad,
                                     const at::Tensor& probs, const at::Tensor& dropped,
                                     double scale, double p) {
  if (!has_kernel(grad) || !begins_at_pack(probs) || !begins_at_pack(dropped)) return false;
  const void *of_grad = grad.const_data_ptr(), *of_probs = probs.const_data_ptr(),
             *of_dropped = dropped.const_data_ptr();
  void* to = d_scores.mutable_data_ptr();
  int64_t n_units = grad.size(-1) * grad.element_size() / pack_bytes;
  auto factor = float(scale), kept = float(dropout_factor(p, grad.scalar_type()));
  void* arguments[] = {&of_grad, &of_probs, &of_dropped, &to, &n_units, &factor, &kept};
  launch("softmax_dropout_backward_", grad, n_units, arguments);
  return true;
}

}  // namespace

}  // namespace redco::random

namespace redco {

using namespace random;

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr double infinity = std::numeric_limits<double>::infinity();

// Softmax with LibTorch's operators.
at::Tensor masked_softmax(const at::Tensor& scores, const std::optional<at::Tensor>& mask,
                          double scale) {
  at::Tensor all = scores * scale;
  if (mask)
    all = mask->scalar_type() == at::kBool ? all.masked_fill(mask->logical_not(), -infinity)
                                           : all + *mask;
  return at::_safe_softmax(all, -1);
}

// The operators for tensors that are not sharded.
std::tuple<at::Tensor, at::Tensor> local_softmax_dropout(const at::Tensor& scores,
                                                         const std::optional<at::Tensor>& mask,
                                                         double scale, double p,
                                                         std::optional<at::Generator> generator) {
  const at::Tensor dense = scores.contiguous();
  at::Tensor probs = at::empty_like(dense), dropped = at::empty_like(dense);
  const Stream stream = next_stream(dense, generator.value_or(at::Generator()));
  if (dense.is_meta()) return {probs, dropped};
  std::optional<at::Tensor> whole_mask;
  if (mask) whole_mask = mask->expand(dense.sizes());
  if (softmax_dropout_on_gpu(probs, dropped, dense, whole_mask, scale, stream, p))
    return {probs, dropped};
  probs = masked_softmax(dense, whole_mask, scale);
  fill_dropout(dropped, {}, probs, stream, p);
  return {probs, dropped};
}

at::Tensor local_backward(const at::Tensor& grad, const at::Tensor& probs,
                          const at::Tensor& dropped, double scale, double p) {
  const at::Tensor dense = grad.contiguous(), of_probs = probs.contiguous(),
                   of_dropped = dropped.contiguous();
  at::Tensor d_scores = at::empty_like(dense);
  if (dense.is_meta()) return d_scores;
  if (softmax_dropout_backward_on_gpu(d_scores, dense, of_probs, of_dropped, scale, p))
    return d_scores;
  const at::Tensor sum = (dense * of_dropped).sum(-1, /*keepdim=*/true);
  return (dense * dropout_factor(p, dense.scalar_type()))
             .masked_fill_(of_dropped.eq(0), 0)
             .sub_(sum)
             .mul_(of_probs) *
         scale;
}

TORCH_LIBRARY_FRAGMENT(redco, m) {
  constexpr auto key = c10::DispatchKey::CompositeExplicitAutograd;
  m.def(
      "softmax_dropout(Tensor scores, Tensor? mask, float scale, float p, *, Generator? generator) "
      "-> (Tensor, Tensor)",
      torch::dispatch(key, &local_softmax_dropout), {at::Tag::nondeterministic_seeded});
  m.def(
      "softmax_dropout_backward(Tensor grad, Tensor probs, Tensor dropped, float scale, float p) "
      "-> Tensor",
      torch::dispatch(key, &local_backward));
}

std::tuple<at::Tensor, at::Tensor> call_operator(const at::Tensor& scores,
                                                 const std::optional<at::Tensor>& mask,
                                                 double scale, double p, const at::Generator& rng) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("redco::softmax_dropout", "")
                             .typed<decltype(local_softmax_dropout)>();
  return op.call(scores, mask, scale, p, rng);
}

// The softmax is a result, too: gradients of the gradient go through it.
class SoftmaxDropout : public torch::autograd::Function<SoftmaxDropout> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& scores,
                               const std::optional<at::Tensor>& mask, double scale, double p,
                               const at::Generator& rng) {
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["p"] = p;
    ctx->set_materialize_grads(false);
    auto [probs, dropped] = call_operator(scores, mask, scale, p, rng);
    ctx->save_for_backward({probs, dropped});
    return {probs, dropped};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("redco::softmax_dropout_backward", "")
                               .typed<decltype(local_backward)>();
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &probs = saved[0], &dropped = saved[1];
    const double scale = ctx->saved_data["scale"].toDouble(), p = ctx->saved_data["p"].toDouble();
    if (!grads[0].defined() && !grads[1].defined()) return variable_list(5);
    if (!grads[0].defined() && !at::GradMode::is_enabled())
      return {op.call(grads[1], probs, dropped, scale, p), {}, {}, {}, {}};
    at::Tensor of_probs = grads[0];
    if (grads[1].defined()) {
      const at::Tensor kept = (grads[1] * dropout_factor(p, dropped.scalar_type()))
                                  .masked_fill(dropped.detach().eq(0), 0);
      of_probs = of_probs.defined() ? of_probs + kept : kept;
    }
    const at::Tensor weighted = probs * of_probs;
    return {(weighted - probs * weighted.sum(-1, /*keepdim=*/true)) * scale, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor softmax_dropout(const at::Tensor& scores, const std::optional<at::Tensor>& mask,
                           double scale, double p, const at::Generator& rng) {
  require(p >= 0 && p <= 1, "dropout: expected a probability from 0 to 1, got ", p);
  const bool fits =
      scores.is_floating_point() && scores.dim() > 0 &&
      (!mask ||
       (!mask->requires_grad() && mask->dim() <= scores.dim() &&
        (mask->scalar_type() == at::kBool || mask->scalar_type() == scores.scalar_type()) &&
        at::is_expandable_to(mask->sizes(), scores.sizes())));
  if (!fits || at::functorch::maybeCurrentDynamicLayer() || counter_generator(rng) == nullptr)
    return dropout(masked_softmax(scores, mask, scale), p, rng);
  std::vector<at::Tensor> tensors = {scores};
  if (mask) tensors.push_back(*mask);
  tensors = intercepted(std::move(tensors));
  std::optional<at::Tensor> given;
  if (mask) given = tensors[1];
  if (!at::GradMode::is_enabled() || !tensors[0].requires_grad())
    return std::get<1>(call_operator(tensors[0], given, scale, p, rng));
  return SoftmaxDropout::apply(tensors[0], given, scale, p, rng)[1];
}

at::Tensor dropout_attention(const at::Tensor& query, const at::Tensor& key,
                             const at::Tensor& value, const std::optional<at::Tensor>& mask,
                             double scale, double p, const at::Generator& rng) {
  const at::Tensor scores = at::matmul(query, key.transpose(-2, -1));
  // There is no kernel for CPUs, so LibTorch's operators compute it there.
  const bool is_on_cpu = planned_device().value_or(query.device().type()) == c10::kCPU;
  const at::Tensor probs = is_on_cpu ? dropout(masked_softmax(scores, mask, scale), p, rng)
                                     : softmax_dropout(scores, mask, scale, p, rng);
  return at::matmul(probs, value);
}

}  // namespace redco
