// Products of numbers of 8 bits with one scale for each tensor, from its present largest element
// (Micikevicius et al., 2022, has the two formats and what each is for).

#include "float8_linear.h"

#include "cuda_kernels.h"

#include <redco/detail/operator_interceptor.h>
#include <redco/error.h>
#include <redco/float8.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace redco::kernels {

extern const char* const float8_source;  // float8.cu

namespace {

constexpr int64_t rows_of_thread = 16, columns_of_thread = 8;  // a pack of y, one of x

// Computes y = x * factor in 8 bits with one GPU kernel. x [rows, columns] is in bfloat16, and
// factor is a float. y has the sizes of x, is in float8_e4m3fn or float8_e5m2, and has contiguous
// rows or columns. Returns false and does nothing if there is no kernel for these tensors.
bool to_float8_on_gpu(const at::Tensor& y, const at::Tensor& x, const at::Tensor& factor) {
  if (x.scalar_type() != at::kBFloat16 || !has_kernels_for(x)) return false;
  if (!x.is_contiguous()) {
    const at::Tensor columns = x.t();
    return columns.is_contiguous() && to_float8_on_gpu(y.t(), columns, factor);
  }
  const bool by_columns = !y.is_contiguous();
  int64_t n_rows = x.size(0), n_packs = x.size(1) / columns_of_thread;
  if (x.numel() == 0 || x.size(1) % columns_of_thread != 0 || !begins_at_pack(x) ||
      !begins_at_pack(y) ||
      (by_columns && (n_rows % rows_of_thread != 0 || !y.t().is_contiguous())))
    return false;
  const bool is_e4m3 = y.scalar_type() == at::kFloat8_e4m3fn;
  const std::string kernel =
      std::string(by_columns ? "columns_to_" : "rows_to_") + (is_e4m3 ? "e4m3" : "e5m2");
  const void *from = x.const_data_ptr(), *times = factor.const_data_ptr();
  void* to = y.mutable_data_ptr();
  int64_t n_all = n_rows * n_packs;
  void* of_rows[] = {&from, &times, &to, &n_all};
  void* of_columns[] = {&from, &times, &to, &n_rows, &n_packs};
  constexpr int64_t n_threads = 256;
  const int64_t n_items = by_columns ? n_all / rows_of_thread : n_all;
  static CudaKernels kernels(float8_source);
  kernels.launch(kernel.c_str(), x.device(),
                 {.x = (n_items + n_threads - 1) / n_threads, .n_threads = int(n_threads)},
                 by_columns ? of_columns : of_rows);
  return true;
}

}  // namespace

}  // namespace redco::kernels

namespace redco {

using namespace kernels;

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

thread_local bool are_float8_products_on = false;

constexpr int64_t float8_multiple = 16;  // of cuBLAS
constexpr int64_t least_size = 128;      // smaller products gain nothing

// The operator of local tensors: x [rows, columns] times a factor. With `by_columns` the columns of
// the result are contiguous.
at::Tensor to_float8(const at::Tensor& x, const at::Tensor& factor, c10::ScalarType dtype,
                     bool by_columns) {
  const int64_t n_rows = x.size(0), n_columns = x.size(1);
  const std::array<int64_t, 2> strides = {by_columns ? 1 : n_columns, by_columns ? n_rows : 1};
  at::Tensor y = at::empty_strided({n_rows, n_columns}, strides, x.options().dtype(dtype));
  if (!y.is_meta() && !to_float8_on_gpu(y, x, factor)) y.copy_(x.mul(factor));
  return y;
}

at::Tensor call_to_float8(const at::Tensor& x, const at::Tensor& factor, c10::ScalarType dtype,
                          bool by_columns) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("redco::to_float8", "")
                             .typed<decltype(to_float8)>();
  return op.call(x, factor, dtype, by_columns);
}

// Returns the divisor of x: a power of two, so that the division rounds nothing.
at::Tensor scale_of(const at::Tensor& x, c10::ScalarType dtype) {
  const double most = dtype == at::kFloat8_e4m3fn ? 448 : 57344;
  return at::linalg_vector_norm(x, std::numeric_limits<double>::infinity(), {}, false, at::kFloat)
      .div_(most)
      .clamp_min_(1e-30)
      .log2_()
      .ceil_()
      .exp2_();
}

// x [rows, in] in 8 bits: `by_rows`, and `by_columns` for the gradient of a weight, otherwise
// undefined. Either of them times `scale` is x.
struct Float8Input {
  at::Tensor by_rows, by_columns, scale;
};

// Remembers the last x that was rounded, because the projections of a layer share x. It keeps no
// memory alive.
class LastInput {
 public:
  Float8Input operator()(const at::Tensor& x, bool needs_columns) {
    const at::NoGradGuard no_grad;
    Float8Input input;
    if (x_._unsafe_get_target() == x.unsafeGetTensorImpl() && version_ == x._version())
      input = {alive(by_rows_), alive(by_columns_), alive(scale_)};
    constexpr c10::ScalarType dtype = at::kFloat8_e4m3fn;
    const at::Tensor rows = x.reshape({-1, x.size(-1)});
    if (!input.scale.defined()) input.scale = scale_of(rows, dtype);
    const bool misses_columns = needs_columns && !input.by_columns.defined();
    at::Tensor factor;
    if (!input.by_rows.defined() || misses_columns) factor = input.scale.reciprocal();
    if (!input.by_rows.defined()) input.by_rows = call_to_float8(rows, factor, dtype, false);
    if (misses_columns) input.by_columns = call_to_float8(rows, factor, dtype, true);
    x_ = weak(x), by_rows_ = weak(input.by_rows), by_columns_ = weak(input.by_columns);
    scale_ = weak(input.scale), version_ = x._version();
    return input;
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  static Weak weak(const at::Tensor& tensor) { return Weak(tensor.getIntrusivePtr()); }
  static at::Tensor alive(const Weak& tensor) { return at::Tensor(tensor.lock()); }

  Weak x_ = weak({}), by_rows_ = weak({}), by_columns_ = weak({}), scale_ = weak({});
  uint32_t version_ = 0;
};

bool fits_kernel(const at::Tensor& a, const at::Tensor& b) {
  return a.size(0) % float8_multiple == 0 && a.size(1) % float8_multiple == 0 &&
         b.size(1) % float8_multiple == 0;
}

// The operator of local tensors: (a scale_a) (b scale_b) in bfloat16.
at::Tensor scaled_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale_a,
                          const at::Tensor& scale_b) {
  if (a.is_meta()) return at::empty({a.size(0), b.size(1)}, a.options().dtype(at::kBFloat16));
  // Parts of a sharded product may have other sizes.
  if (!a.is_cuda() || !fits_kernel(a, b))
    return at::mm(a.to(at::kBFloat16), b.to(at::kBFloat16)).mul_(scale_a * scale_b);
  // Before Blackwell rows of a and columns of b must be contiguous.
  return at::_scaled_mm(a.contiguous(), b.t().contiguous().t(), scale_a, scale_b, {}, {},
                        at::kBFloat16);
}

at::Tensor call_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale_a,
                        const at::Tensor& scale_b) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("redco::scaled_product", "")
                             .typed<decltype(scaled_product)>();
  return op.call(a, b, scale_a, scale_b);
}

TORCH_LIBRARY_FRAGMENT(redco, m) {
  m.def("to_float8(Tensor x, Tensor factor, ScalarType dtype, bool by_columns) -> Tensor",
        torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &to_float8),
        {at::Tag::pointwise});
  m.def("scaled_product(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b) -> Tensor",
        torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &scaled_product));
}

// The product of x in 8 bits with a weight in 16 bits or its transpose.
at::Tensor with_weight(const at::Tensor& x, const at::Tensor& x_scale, const at::Tensor& weight,
                       bool is_transposed) {
  const at::Tensor scale = scale_of(weight, at::kFloat8_e4m3fn);
  // In either case the columns of the second matrix are contiguous.
  const at::Tensor values =
      call_to_float8(weight, scale.reciprocal(), at::kFloat8_e4m3fn, /*by_columns=*/!is_transposed);
  return call_product(x, is_transposed ? values.t() : values, x_scale, scale);
}

class Float8Product : public torch::autograd::Function<Float8Product> {
 public:
  // The last three arguments are the Float8Input of x. The weight is kept in 16 bits, as in other
  // products: it may be a parameter of which a process holds only a part until backward.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& /*x*/, const at::Tensor& weight,
                            const at::Tensor& by_rows, const std::optional<at::Tensor>& by_columns,
                            const at::Tensor& scale) {
    ctx->save_for_backward({weight, by_columns.value_or(at::Tensor()), scale});
    return with_weight(by_rows, scale, weight, /*is_transposed=*/true);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    require(!at::GradMode::is_enabled(),
            "products in float8 have no second derivative: use compute_dtype = \"bfloat16\"");
    const variable_list saved = ctx->get_saved_variables();
    constexpr c10::ScalarType dtype = at::kFloat8_e5m2;
    const at::Tensor scale = scale_of(grads[0], dtype), factor = scale.reciprocal();
    at::Tensor d_x, d_weight;
    if (ctx->needs_input_grad(0))
      d_x = with_weight(call_to_float8(grads[0], factor, dtype, /*by_columns=*/false), scale,
                        saved[0], /*is_transposed=*/false);
    if (ctx->needs_input_grad(1))
      d_weight = call_product(call_to_float8(grads[0], factor, dtype, /*by_columns=*/true).t(),
                              saved[1], scale, saved[2]);
    return {d_x, d_weight, {}, {}, {}};
  }
};

}  // namespace

Float8Products::Float8Products(bool are_on)
    : outer_(std::exchange(are_float8_products_on, are_on)) {}
Float8Products::~Float8Products() { are_float8_products_on = outer_; }
bool Float8Products::are_on() { return are_float8_products_on; }

bool kernels::multiplies_in_float8(const at::Tensor& x, const at::Tensor& weight) {
  if (!are_float8_products_on || at::functorch::maybeCurrentDynamicLayer()) return false;
  if (x.scalar_type() != at::kBFloat16 || weight.scalar_type() != at::kBFloat16) return false;
  if (x.dim() == 0 || weight.dim() != 2 || x.size(-1) != weight.size(1) || x.numel() == 0)
    return false;
  return std::min(weight.size(0), weight.size(1)) >= least_size &&
         weight.size(0) % float8_multiple == 0 && weight.size(1) % float8_multiple == 0 &&
         x.numel() / x.size(-1) % float8_multiple == 0;
}

at::Tensor kernels::float8_linear(const at::Tensor& x, const at::Tensor& weight) {
  thread_local LastInput last_input;
  const Float8Input input = last_input(x, at::GradMode::is_enabled() && weight.requires_grad());
  const variable_list tensors = intercepted({x.reshape({-1, x.size(-1)}), weight});
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  std::optional<at::Tensor> by_columns;
  if (input.by_columns.defined()) by_columns = input.by_columns;
  return Float8Product::apply(tensors[0], tensors[1], input.by_rows, by_columns, input.scale)
      .view(sizes);
}

}  // namespace redco
