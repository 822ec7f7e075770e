// Attention of each token to those before it in its own sequence and within a window.

#include "cuda_kernels.h"
#include "segment_kernels.h"

#include <redco/autocast.h>
#include <redco/detail/plain_attention.h>
#include <redco/detail/planned_device.h>
#include <redco/error.h>
#include <redco/nn.h>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/diff.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace redco {

namespace {

using kernels::Attended;
using kernels::HeadGradients;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<at::Tensor>;
using Window = std::optional<int64_t>;

constexpr int64_t heads = 1, positions = 2;  // dimensions of query, key and value

void check(const at::Tensor& query, const OptionalTensor& segment_ids, Window window) {
  require(query.dim() == 4, "attention: expected q [batch, heads, length, size], got ",
          query.sizes());
  require(!window || *window > 0, "attention: window: expected at least 1, got ",
          window.value_or(0));
  if (!segment_ids) return;
  require(at::isIntegralType(segment_ids->scalar_type(), /*includeBool=*/false),
          "attention: segment_ids: expected integers, got ", segment_ids->scalar_type());
  require(segment_ids->dim() == 2 && segment_ids->size(0) == query.size(0) &&
              segment_ids->size(1) == query.size(positions),
          "attention: segment_ids: expected [", query.size(0), ", ", query.size(positions),
          "], the batch and length of q ", query.sizes(), ", got ", segment_ids->sizes());
  require(segment_ids->device() == query.device(), "attention: segment_ids are on ",
          segment_ids->device(), ", q is on ", query.device(), ": move them there with :to");
}

void check_keys(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  const bool fit = key.dim() == 4 && value.dim() == 4 && key.size(0) == query.size(0) &&
                   value.size(0) == query.size(0) && key.size(heads) == value.size(heads) &&
                   key.size(positions) == query.size(positions) &&
                   value.size(positions) == query.size(positions) && key.size(3) == query.size(3);
  require(fit && (query.size(heads) == key.size(heads) ||
                  (key.size(heads) > 0 && query.size(heads) % key.size(heads) == 0)),
          "attention: expected k and v with the batch and length of q, heads that divide "
          "those of q, and k with q's size; got q ",
          query.sizes(), ", k ", key.sizes(), ", v ", value.sizes());
  require(query.scalar_type() == key.scalar_type() && key.scalar_type() == value.scalar_type(),
          "attention: q, k and v must have one dtype, they have ", query.scalar_type(), ", ",
          key.scalar_type(), " and ", value.scalar_type());
}

at::ScalarType computed_dtype(const at::Tensor& x) {
  const auto lower = autocast_dtype(x.device().type());
  const bool is_cast = lower && x.is_floating_point() && x.scalar_type() != at::kDouble;
  return is_cast ? *lower : x.scalar_type();
}

// LibTorch's kernels for GPUs take heads of a multiple of `unit` elements, up to `most_elements`.
constexpr int64_t unit = 8, most_elements = 256;

int64_t padded_size(const at::Tensor& query, const at::Tensor& value) {
  const int64_t size = std::max(query.size(3), value.size(3));
  return device_type_of(query) == c10::kCUDA ? (size + unit - 1) / unit * unit : size;
}

at::Tensor padded(const at::Tensor& tensor, int64_t size) {
  return tensor.size(3) == size ? tensor : at::constant_pad_nd(tensor, {0, size - tensor.size(3)});
}

at::Tensor with_mask(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const at::Tensor& mask, double scale) {
  return at::scaled_dot_product_attention(query, key, value, mask, 0, false, scale,
                                          query.size(heads) != key.size(heads));
}

// LibTorch's kernels need the elements of a head side by side.
at::Tensor dense(const at::Tensor& tensor) {
  return tensor.stride(3) == 1 ? tensor : tensor.contiguous();
}

Attended attended(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const OptionalTensor& segment_ids, Window window, double scale) {
  at::AutoDispatchBelowADInplaceOrView below;  // the results are no views
  if (query.is_meta() || query.numel() == 0) {
    const int64_t batch = query.size(0), n = query.size(heads), length = query.size(positions);
    const bool is_double = query.scalar_type() == at::kDouble;
    return {
        at::empty({batch, length, n, query.size(3)}, query.options()).transpose(1, 2),
        at::empty({batch, n, length}, query.options().dtype(is_double ? at::kDouble : at::kFloat))};
  }
  const auto attend = query.is_cpu() ? kernels::attend_on_cpu : kernels::attend_on_gpu;
  return attend(dense(query), dense(key), dense(value), {segment_ids, window, scale});
}

HeadGradients attended_backward(const at::Tensor& grad_out, const at::Tensor& query,
                                const at::Tensor& key, const at::Tensor& value,
                                const at::Tensor& out, const at::Tensor& logsumexp,
                                const OptionalTensor& segment_ids, Window window, double scale) {
  at::AutoDispatchBelowADInplaceOrView below;
  if (query.is_meta() || query.numel() == 0) {
    const auto empty = [](const at::Tensor& like) {
      return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options())
          .transpose(1, 2);
    };
    return {empty(query), empty(key), empty(value)};
  }
  const auto backward =
      query.is_cpu() ? kernels::attend_on_cpu_backward : kernels::attend_on_gpu_backward;
  return backward(dense(grad_out), dense(query), dense(key), dense(value), dense(out), logsumexp,
                  {segment_ids, window, scale});
}

// The gradients with differentiable operators, for second-order gradients.
variable_list differentiable_gradients(const at::Tensor& grad, const at::Tensor& query,
                                       const at::Tensor& key, const at::Tensor& value,
                                       const at::Tensor& mask, double scale) {
  const int64_t n_shared = query.size(heads) / key.size(heads);
  const at::Tensor k = key.repeat_interleave(n_shared, heads),
                   v = value.repeat_interleave(n_shared, heads);
  const at::Tensor probs =
      (query.matmul(k.transpose(2, 3)) * scale)
          .masked_fill(mask.logical_not(), -std::numeric_limits<double>::infinity())
          .softmax(-1);
  const at::Tensor d_probs = grad.matmul(v.transpose(2, 3));
  const at::Tensor d_scores =
      probs * (d_probs - (probs * d_probs).sum(-1, /*keepdim=*/true)) * scale;
  const auto summed = [&](const at::Tensor& of_heads) {
    return of_heads.unflatten(heads, {key.size(heads), n_shared}).sum(heads + 1);
  };
  return {d_scores.matmul(k), summed(d_scores.transpose(2, 3).matmul(query)),
          summed(probs.transpose(2, 3).matmul(grad))};
}

class SegmentAttention : public torch::autograd::Function<SegmentAttention> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, const OptionalTensor& segment_ids,
                            Window window, double scale) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("redco::_segment_attention", "")
                               .typed<decltype(attended)>();
    auto [out, logsumexp] = op.call(query, key, value, segment_ids, window, scale);
    ctx->save_for_backward({query, key, value, out, logsumexp, segment_ids.value_or(at::Tensor())});
    ctx->saved_data["window"] = window;
    ctx->saved_data["scale"] = scale;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &query = saved[0], &key = saved[1], &value = saved[2];
    const OptionalTensor segment_ids = saved[5].defined() ? OptionalTensor(saved[5]) : std::nullopt;
    const auto window = ctx->saved_data["window"].toOptional<int64_t>();
    const double scale = ctx->saved_data["scale"].toDouble();
    variable_list result(6);
    if (at::GradMode::is_enabled()) {
      variable_list all = differentiable_gradients(grads[0], query, key, value,
                                                   segment_mask(query, segment_ids, window), scale);
      std::copy(all.begin(), all.end(), result.begin());
      return result;
    }
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("redco::_segment_attention_backward", "")
                               .typed<decltype(attended_backward)>();
    std::tie(result[0], result[1], result[2]) =
        op.call(grads[0], query, key, value, saved[3], saved[4], segment_ids, window, scale);
    return result;
  }
};

at::Tensor recorded(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const OptionalTensor& segment_ids, Window window, double scale) {
  return SegmentAttention::apply(query, key, value, segment_ids, window, scale);
}

TORCH_LIBRARY_FRAGMENT(redco, m) {
  // Heads of one size and dtype.
  m.def(
      "segment_attention(Tensor query, Tensor key, Tensor value, Tensor? segment_ids, int? window, "
      "float scale) -> Tensor",
      torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, &recorded));
  m.def(
      "_segment_attention(Tensor query, Tensor key, Tensor value, Tensor? segment_ids, "
      "int? window, float scale) -> (Tensor, Tensor)",
      torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &attended));
  m.def(
      "_segment_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, "
      "Tensor out, Tensor logsumexp, Tensor? segment_ids, int? window, float scale) -> (Tensor, "
      "Tensor, Tensor)",
      torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &attended_backward));
}

}  // namespace

at::Tensor segment_mask(const at::Tensor& query, const OptionalTensor& segment_ids, Window window) {
  check(query, segment_ids, window);
  const int64_t length = query.size(positions);
  at::Tensor seen =
      at::ones({length, length}, at::TensorOptions(at::kBool).device(query.device())).tril();
  if (window) seen = seen.triu(1 - *window);
  seen = seen.unsqueeze(0).unsqueeze(0);
  if (!segment_ids || length == 0) return seen;
  // The number of each token's run.
  const at::Tensor runs =
      at::diff(*segment_ids, 1, 1, /*prepend=*/segment_ids->narrow(1, 0, 1)).ne(0).cumsum(1);
  return runs.unsqueeze(2).eq(runs.unsqueeze(1)).unsqueeze(1).logical_and(seen);
}

bool has_segment_attention(const at::Tensor& x) {
  if (!x.is_floating_point()) return false;
  if (device_type_of(x) != c10::kCUDA) return true;
  if (c10::elementSize(computed_dtype(x)) != 2 || !at::globalContext().userEnabledFlashSDP())
    return false;
  // A planned GPU counts as a recent one.
  return !x.is_cuda() || (CudaKernels::are_available() && compute_capability(x.device()) >= 80);
}

at::Tensor segment_attention(const at::Tensor& query, const at::Tensor& key,
                             const at::Tensor& value, const OptionalTensor& segment_ids,
                             Window window, std::optional<double> given_scale) {
  check(query, segment_ids, window);
  check_keys(query, key, value);
  const double scale = given_scale.value_or(1 / std::sqrt(double(query.size(3))));
  const int64_t size = padded_size(query, value);
  // Transforms such as vmap know LibTorch's operators only.
  const bool needs_mask = at::functorch::maybeCurrentDynamicLayer() ||
                          PlainAttention::is_active() || !has_segment_attention(query) ||
                          (device_type_of(query) == c10::kCUDA && size > most_elements);
  if (needs_mask)
    return with_mask(query, key, value, segment_mask(query, segment_ids, window), scale);
  const auto prepared = [&, dtype = computed_dtype(query)](const at::Tensor& tensor) {
    return padded(tensor.to(dtype), size);
  };
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("redco::segment_attention", "")
                             .typed<decltype(recorded)>();
  const at::Tensor y =
      op.call(prepared(query), prepared(key), prepared(value), segment_ids, window, scale);
  return value.size(3) == size ? y : y.narrow(3, 0, value.size(3));
}

}  // namespace redco
