// Fills tensors with random numbers on other devices than the CPU.

#include "places.h"
#include "words_on_device.h"

#include "../cuda_kernels.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <string>

namespace redco::random {

extern const char* const fill_source;  // fill.cu

namespace on_device {

namespace {

constexpr int n_each = 4, n_threads = 256;

bool has_kernels(const at::Tensor& out) {
  if (!out.is_cuda()) return false;
  std::string why;
  if (CudaKernels::are_available(&why)) return true;
  TORCH_WARN_ONCE("random numbers on this GPU take many tensor operators, which is slow: ", why);
  return false;
}

// Fills `out` by a kernel for elements of `type`. False if it has to be done by operators.
template <class... Numbers>
bool run(const char* kernel, at::ScalarType type, at::Tensor& out, const Stream& stream,
         Numbers... numbers) {
  if (!has_kernels(out)) return false;
  Places places(out.sizes(), stream);
  if (places.n_outer() > most_dims) return false;
  int64_t n = out.numel();
  if (n == 0) return true;
  bool is_direct = out.is_contiguous() && out.scalar_type() == type;
  at::Tensor dense = is_direct ? out : at::empty(out.sizes(), out.options().dtype(type));
  Words words(out, stream, places);
  void* data = dense.mutable_data_ptr();
  void* arguments[] = {&data, &n, &words, &numbers...};
  static CudaKernels kernels(fill_source);
  int64_t per_block = int64_t{n_each} * n_threads;
  kernels.launch(kernel, out.device(),
                 {.x = (n + per_block - 1) / per_block, .n_threads = n_threads}, arguments);
  if (!is_direct) out.copy_(dense);
  return true;
}

}  // namespace

void fill_uniform(at::Tensor out, const Stream& stream, double low, double high) {
  const int digits = digits_of(out.scalar_type());
  bool is_wide = out.scalar_type() == at::kDouble;
  bool is_done = is_wide ? run("uniform_double", at::kDouble, out, stream, low, high - low)
                         : run("uniform_float", at::kFloat, out, stream, float(low),
                               float(high - low), digits);
  if (!is_done) by_operators::fill_uniform(out, stream, low, high);
}

void fill_open_uniform(at::Tensor out, const Stream& stream) {
  if (!run("open_uniform", at::kDouble, out, stream)) by_operators::fill_open_uniform(out, stream);
}

void fill_normal(at::Tensor out, const Stream& stream, double mean, double std) {
  bool is_wide = out.scalar_type() == at::kDouble;
  if (is_wide || !run("normal_float", at::kFloat, out, stream, float(mean), float(std)))
    by_operators::fill_normal(out, stream, mean, std);
}

void fill_bernoulli(at::Tensor out, const Stream& stream, double p) {
  int64_t bound = bernoulli_bound(p);
  if (bound == 0)
    out.zero_();
  else if (!run("bernoulli", at::kBool, out, stream, uint32_t(bound - 1)))
    by_operators::fill_bernoulli(out, stream, p);
}

bool fill_dropout(at::Tensor out, const at::Tensor& x, const Stream& stream, double p) {
  const uint32_t last = last_kept(p);
  const auto scale = float(dropout_factor(p, x.scalar_type()));
  const void* from = x.const_data_ptr();
  switch (x.scalar_type()) {
    case at::kFloat:
      return run("dropout_float", at::kFloat, out, stream, from, last, scale);
    case at::kBFloat16:
      return run("dropout_bfloat16", at::kBFloat16, out, stream, from, last, scale);
    case at::kHalf:
      return run("dropout_half", at::kHalf, out, stream, from, last, scale);
    default:
      return false;
  }
}

void fill_integers(at::Tensor out, const Stream& stream, int64_t base, uint64_t range) {
  const char* kernel = is_short(range) ? "short_integers" : "integers";
  if (!run(kernel, at::kLong, out, stream, base, range))
    by_operators::fill_integers(out, stream, base, range);
}

}  // namespace on_device

}  // namespace redco::random
