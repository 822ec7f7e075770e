// Cross-entropy on GPUs. With LibTorch's operators, the logits would be read and written nine
// times, mostly in float32.

#include "cross_entropy_kernel.h"

#include "cuda_kernels.h"

#include <redco/detail/planned_device.h>
#include <redco/error.h>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <string>

namespace redco::kernels {

extern const char* const cross_entropy_source;  // cross_entropy.cu

namespace {

// Mirror `Rows` and `Target` of cross_entropy.cu.
struct LogitRows {
  void* logits;
  int64_t n_classes, n_columns;
};
struct TargetPointers {
  const int64_t* labels;
  const bool *missing, *ignored;
  const float *normalizers, *sums;
  float smoothing;
  int64_t n_all;
};

// A block of threads for each row.
void launch(const char* kernel, const at::Tensor& logits, void** arguments) {
  constexpr int n_threads = 512;  // as in cross_entropy.cu
  static CudaKernels kernels(cross_entropy_source);
  kernels.launch((std::string(kernel) + kernel_suffix(logits.scalar_type())).c_str(),
                 logits.device(), {.x = logits.size(0), .n_threads = n_threads}, arguments);
}

LogitRows rows_of(const at::Tensor& logits, int64_t n_classes) {
  require(logits.is_contiguous() && logits.size(1) * logits.element_size() % 16 == 0,
          "cross-entropy: rows of logits ", logits.sizes(), " must fill whole units of 16 bytes");
  return {logits.mutable_data_ptr(), n_classes, logits.size(1)};
}

at::Tensor numbers_for_rows(const at::Tensor& logits) {
  return at::empty({logits.size(0), 1}, logits.options().dtype(at::kFloat));
}

}  // namespace

bool has_cross_entropy_kernels(const at::Tensor& x) {
  if (device_type_of(x) != c10::kCUDA || kernel_suffix(x.scalar_type()) == nullptr) return false;
  std::string why;
  if (x.is_meta() || CudaKernels::are_available(&why)) return true;
  TORCH_WARN_ONCE("linear_cross_entropy takes many tensor operators on this GPU: ", why);
  return false;
}

RowSums row_sums(const at::Tensor& logits, int64_t n_classes) {
  RowSums sums{numbers_for_rows(logits), numbers_for_rows(logits)};
  if (logits.size(0) == 0 || logits.is_meta()) return sums;
  LogitRows rows = rows_of(logits, n_classes);
  void *normalizers = sums.normalizer.mutable_data_ptr(), *all = sums.sum.mutable_data_ptr();
  void* arguments[] = {&rows, &normalizers, &all};
  launch("reduce_", logits, arguments);
  return sums;
}

at::Tensor losses_of_logits_(const at::Tensor& logits, int64_t n_classes, const RowSums& sums,
                             const Target& target, bool needs_gradient) {
  at::Tensor losses = numbers_for_rows(logits);
  if (logits.size(0) == 0 || logits.is_meta()) return losses;
  LogitRows rows = rows_of(logits, n_classes);
  const at::Tensor labels = target.labels.contiguous(), missing = target.missing.contiguous(),
                   ignored = target.ignored.contiguous(), normalizer = sums.normalizer.contiguous();
  TargetPointers pointers{labels.const_data_ptr<int64_t>(),
                          missing.const_data_ptr<bool>(),
                          ignored.const_data_ptr<bool>(),
                          normalizer.const_data_ptr<float>(),
                          sums.sum.const_data_ptr<float>(),
                          float(target.smoothing),
                          target.n_classes};
  void* loss_data = losses.mutable_data_ptr();
  void* arguments[] = {&rows, &pointers, &loss_data, &needs_gradient};
  launch("differentiate_", logits, arguments);
  return losses;
}

}  // namespace redco::kernels
