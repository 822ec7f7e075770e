// Attention within segments on GPUs. LibTorch's flash attention takes the joined rows of all
// sequences, the places where sequences end, and a window.

#include "segment_kernels.h"

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>

namespace redco::kernels {

namespace {

class Flash {
 public:
  Flash(const at::Tensor& query, const SegmentOptions& options)
      : rows_(query.size(0)), length_(query.size(2)), longest_(length_) {
    if (options.segment_ids) {
      const std::shared_ptr<const Segments> segments = segments_of(*options.segment_ids);
      ends = segments->ends;
      longest_ = segments->longest;
    }
    if (options.window) left = *options.window - 1;
  }

  // [B, H, T, D] as [B * T, H, D], or without segments [B, T, H, D].
  at::Tensor joined(const at::Tensor& heads) const {
    const at::Tensor tokens = heads.transpose(1, 2);
    return ends.defined() ? tokens.flatten(0, 1) : tokens;
  }
  at::Tensor apart(const at::Tensor& joined) const {
    return (ends.defined() ? joined.unflatten(0, {rows_, length_}) : joined).transpose(1, 2);
  }
  // The logsumexp of joined rows is [H, B * T].
  at::Tensor joined_sums(const at::Tensor& sums) const {
    return ends.defined() ? sums.transpose(0, 1).flatten(1) : sums;
  }
  at::Tensor apart_sums(const at::Tensor& joined) const {
    if (!ends.defined()) return joined;
    return joined.unflatten(1, {rows_, length_}).transpose(0, 1).contiguous();
  }

  int64_t longest() const { return longest_; }

  at::Tensor ends;
  std::optional<int64_t> left;
  static constexpr int64_t right = 0;  // no token sees a later one, in sequences of one token too

 private:
  int64_t rows_, length_, longest_;
};

std::optional<at::Tensor> given(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

}  // namespace

Attended attend_on_gpu(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                       const SegmentOptions& options) {
  const Flash flash(query, options);
  const std::optional<at::Tensor> ends = given(flash.ends);
  auto results = at::_flash_attention_forward(
      flash.joined(query), flash.joined(key), flash.joined(value), ends, ends, flash.longest(),
      flash.longest(), /*dropout_p=*/0, /*is_causal=*/true, /*return_debug_mask=*/false,
      options.scale, flash.left, flash.right);
  return {flash.apart(std::get<0>(results)), flash.apart_sums(std::get<1>(results))};
}

HeadGradients attend_on_gpu_backward(const at::Tensor& grad, const at::Tensor& query,
                                     const at::Tensor& key, const at::Tensor& value,
                                     const at::Tensor& out, const at::Tensor& logsumexp,
                                     const SegmentOptions& options) {
  const Flash flash(query, options);
  const at::Tensor no_dropout = at::empty({0}, query.options().dtype(at::kLong));
  auto [d_query, d_key, d_value] = at::_flash_attention_backward(
      flash.joined(grad), flash.joined(query), flash.joined(key), flash.joined(value),
      flash.joined(out), flash.joined_sums(logsumexp), flash.ends, flash.ends, flash.longest(),
      flash.longest(), /*dropout_p=*/0, /*is_causal=*/true, no_dropout, no_dropout, options.scale,
      flash.left, flash.right);
  return {flash.apart(d_query), flash.apart(d_key), flash.apart(d_value)};
}

}  // namespace redco::kernels
