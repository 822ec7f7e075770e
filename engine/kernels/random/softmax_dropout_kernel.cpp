// Launches the kernels of softmax_dropout.cu.

#include "softmax_dropout_kernel.h"

#include "../cuda_kernels.h"
#include "places.h"
#include "words_on_device.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <string>

namespace redco::random {

extern const char* const softmax_dropout_source;  // softmax_dropout.cu

namespace {

constexpr uint64_t n_of_block = 4;  // numbers that are drawn at once
constexpr uint64_t most_threads = 256;

// `MaskRows` of softmax_dropout.cu.
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

}  // namespace

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

}  // namespace redco::random
