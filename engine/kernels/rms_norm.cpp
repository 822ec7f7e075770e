// RMS norms on CPUs, with one operator for forward and one for backward. LibTorch has kernels for
// GPUs only: on a CPU it computes a norm with six operators, and keeps their results for backward.
// Its autograd, autocast and rules for GPUs apply to these operators, too.

#include "vectorize.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/ops/_fused_rms_norm_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

namespace redco::kernels {

namespace {

// The sum of term(0), ..., term(n - 1), the same on all instruction sets.
template <class Wide, class Term>
inline __attribute__((always_inline)) Wide sum_of(int64_t n, const Term& term) {
  constexpr int n_lanes = 16;
  Wide lanes[n_lanes] = {};
  int64_t i = 0;
  for (; i + n_lanes <= n; i += n_lanes)
    for (int lane = 0; lane < n_lanes; ++lane) lanes[lane] += term(i + lane);
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += term(i);
  for (int width = n_lanes / 2; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  return lanes[0];
}

// Rows of x, each of n elements; `weight` may be null.
template <class T>
struct NormRows {
  int64_t n_rows, n;
  const T *x, *weight;
};

template <class T>
inline __attribute__((always_inline)) void normalize(const NormRows<T>& rows, double eps,
                                                     T* __restrict__ y,
                                                     at::opmath_type<T>* __restrict__ rstd) {
  using Wide = at::opmath_type<T>;
  const int64_t n = rows.n;
  const T* __restrict__ weight = rows.weight;
  for (int64_t row = 0; row < rows.n_rows; ++row, y += n) {
    const T* __restrict__ x = rows.x + row * n;
    const Wide squares = sum_of<Wide>(n, [=](int64_t i) { return Wide(x[i]) * Wide(x[i]); });
    const Wide factor = 1 / std::sqrt(squares / Wide(n) + Wide(eps));
    rstd[row] = factor;
    if (weight == nullptr)
      for (int64_t i = 0; i < n; ++i) y[i] = T(Wide(x[i]) * factor);
    else
      for (int64_t i = 0; i < n; ++i) y[i] = T(Wide(x[i]) * factor * Wide(weight[i]));
  }
}

// Adds to d_weight; it and d_x may be null.
template <class T>
inline __attribute__((always_inline)) void differentiate(
    const NormRows<T>& rows, const T* __restrict__ grad,
    const at::opmath_type<T>* __restrict__ rstd, T* __restrict__ d_x,
    at::opmath_type<T>* __restrict__ d_weight) {
  using Wide = at::opmath_type<T>;
  const int64_t n = rows.n;
  const T* __restrict__ weight = rows.weight;
  for (int64_t row = 0; row < rows.n_rows; ++row, grad += n) {
    const T* __restrict__ x = rows.x + row * n;
    const Wide factor = rstd[row];
    if (d_weight != nullptr)
      for (int64_t i = 0; i < n; ++i) d_weight[i] += Wide(grad[i]) * (Wide(x[i]) * factor);
    if (d_x == nullptr) continue;
    auto write = [&](auto of_weight) {
      const Wide along =
          sum_of<Wide>(n, [=](int64_t i) { return Wide(grad[i]) * of_weight(i) * Wide(x[i]); });
      const Wide share = along * factor * factor / Wide(n);
      for (int64_t i = 0; i < n; ++i)
        d_x[row * n + i] = T(factor * (Wide(grad[i]) * of_weight(i) - Wide(x[i]) * share));
    };
    if (weight == nullptr)
      write([](int64_t) { return Wide(1); });
    else
      write([=](int64_t i) { return Wide(weight[i]); });
  }
}

#define REDCO_NORM(T)                                                             \
  REDCO_VECTORIZE void normalize_rows(const NormRows<T>& rows, double eps, T* y,  \
                                      at::opmath_type<T>* rstd) {                 \
    normalize<T>(rows, eps, y, rstd);                                             \
  }                                                                               \
  REDCO_VECTORIZE void differentiate_rows(const NormRows<T>& rows, const T* grad, \
                                          const at::opmath_type<T>* rstd, T* d_x, \
                                          at::opmath_type<T>* d_weight) {         \
    differentiate<T>(rows, grad, rstd, d_x, d_weight);                            \
  }
REDCO_NORM(double)
REDCO_NORM(float)
REDCO_NORM(at::BFloat16)
#undef REDCO_NORM

// Rows whose gradients of the weight are added in one sum. The number is fixed, so that results do
// not depend on the number of threads.
constexpr int64_t rows_per_part = 64;

template <class Function>
void for_parts(int64_t n_rows, int64_t n, const Function& function) {
  const int64_t n_parts = (n_rows + rows_per_part - 1) / rows_per_part;
  const int64_t grain = std::max<int64_t>(1, at::internal::GRAIN_SIZE / (n * rows_per_part));
  at::parallel_for(0, n_parts, grain, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t first = part * rows_per_part;
      function(part, first, std::min(rows_per_part, n_rows - first));
    }
  });
}

// The type in which rows are read; compilers do not vectorize conversions of float16.
at::ScalarType row_type(const at::Tensor& x, const at::Tensor& weight) {
  at::ScalarType type = x.scalar_type();
  if (weight.defined()) type = at::promote_types(type, weight.scalar_type());
  return type == at::kHalf ? at::kFloat : type;
}

at::Tensor dense(const at::Tensor& tensor, at::ScalarType type) {
  return tensor.defined() ? tensor.to(type).contiguous() : tensor;
}

template <class T>
const T* data_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<T>() : nullptr;
}

int64_t elements_of(at::IntArrayRef normalized_shape) {
  return c10::multiply_integers(normalized_shape);
}

std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& input,
                                            at::IntArrayRef normalized_shape,
                                            const std::optional<at::Tensor>& weight,
                                            std::optional<double> eps) {
  if (input.numel() == 0 || !input.is_floating_point())
    return at::compositeimplicitautograd::_fused_rms_norm(input, normalized_shape, weight, eps);
  const at::Tensor given = weight.value_or(at::Tensor());
  const at::ScalarType type = row_type(input, given);
  std::vector<int64_t> sizes = input.sizes().vec();
  std::fill(sizes.end() - int64_t(normalized_shape.size()), sizes.end(), 1);
  at::Tensor y = at::empty(input.sizes(), input.options().dtype(type));
  at::Tensor rstd = at::empty(sizes, input.options().dtype(at::toOpMathType(type)));
  if (input.is_meta()) return {y.to(input.scalar_type()), rstd};
  const at::Tensor x = dense(input, type), factors = dense(given, type);
  const int64_t n = elements_of(normalized_shape);
  const double added =
      eps.value_or(input.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                      : std::numeric_limits<float>::epsilon());
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, type, "rms_norm", [&] {
    for_parts(x.numel() / n, n, [&](int64_t, int64_t first, int64_t n_rows) {
      normalize_rows({n_rows, n, data_of<scalar_t>(x) + first * n, data_of<scalar_t>(factors)},
                     added, y.mutable_data_ptr<scalar_t>() + first * n,
                     rstd.mutable_data_ptr<at::opmath_type<scalar_t>>() + first);
    });
  });
  return {y.to(input.scalar_type()), rstd};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad_out,
                                                     const at::Tensor& input,
                                                     at::IntArrayRef normalized_shape,
                                                     const at::Tensor& rstd,
                                                     const std::optional<at::Tensor>& weight,
                                                     std::array<bool, 2> output_mask) {
  const at::Tensor given = weight.value_or(at::Tensor());
  const at::ScalarType type = row_type(input, given), wide = at::toOpMathType(type);
  const int64_t n = elements_of(normalized_shape), n_rows = n == 0 ? 0 : input.numel() / n;
  const int64_t n_parts = (n_rows + rows_per_part - 1) / rows_per_part;
  at::Tensor d_x, d_weight;
  if (output_mask[0]) d_x = at::empty(input.sizes(), input.options().dtype(type));
  if (output_mask[1] && given.defined())
    d_weight = at::zeros({n_parts, n}, input.options().dtype(wide));
  if (!input.is_meta() && n_rows > 0) {
    const at::Tensor x = dense(input, type), factors = dense(given, type);
    const at::Tensor grad = dense(grad_out, type), r = dense(rstd, wide);
    AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, type, "rms_norm_backward", [&] {
      using Wide = at::opmath_type<scalar_t>;
      for_parts(n_rows, n, [&](int64_t part, int64_t first, int64_t n_here) {
        differentiate_rows(
            {n_here, n, data_of<scalar_t>(x) + first * n, data_of<scalar_t>(factors)},
            data_of<scalar_t>(grad) + first * n, data_of<Wide>(r) + first,
            d_x.defined() ? d_x.mutable_data_ptr<scalar_t>() + first * n : nullptr,
            d_weight.defined() ? d_weight.mutable_data_ptr<Wide>() + part * n : nullptr);
      });
    });
  }
  if (d_x.defined()) d_x = d_x.to(input.scalar_type());
  if (d_weight.defined()) d_weight = d_weight.sum(0).to(given.scalar_type()).view(normalized_shape);
  return {d_x, d_weight};
}

void add_norms(torch::Library& m) {
  m.impl("_fused_rms_norm", rms_norm);
  m.impl("_fused_rms_norm_backward", rms_norm_backward);
}

TORCH_LIBRARY_IMPL(aten, CPU, m) { add_norms(m); }
TORCH_LIBRARY_IMPL(aten, Meta, m) { add_norms(m); }  // for plans

}  // namespace

}  // namespace redco::kernels
