// Products of numbers of 8 bits with one scale for each tensor, from its present largest element
// (Micikevicius et al., 2022, has the two formats and what each is for).

#include "float8_linear.h"

#include <redco/detail/operator_interceptor.h>
#include <redco/error.h>
#include <redco/float8.h>

#include <ATen/core/grad_mode.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace redco {

using namespace kernels;

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

thread_local bool are_float8_products_on = false;

constexpr int64_t float8_multiple = 16;  // of cuBLAS
constexpr int64_t least_size = 128;      // smaller products gain nothing

// values * scale are the numbers.
struct Scaled {
  at::Tensor values, scale;
};

// By a power of two, so that the division rounds nothing.
Scaled scaled(const at::Tensor& x, c10::ScalarType dtype) {
  const double most = dtype == at::kFloat8_e4m3fn ? 448 : 57344;
  at::Tensor scale =
      at::linalg_vector_norm(x, std::numeric_limits<double>::infinity(), {}, false, at::kFloat)
          .div_(most)
          .clamp_min_(1e-30)
          .log2_()
          .ceil_()
          .exp2_();
  return {x.mul(scale.reciprocal()).to(dtype), scale};
}

// The last x that was scaled: the projections of a layer have the same. It keeps no memory: the
// products that need the values have them.
class LastScaled {
 public:
  Scaled operator()(const at::Tensor& x) {
    auto values = values_.lock(), scale = scale_.lock();
    if (values && scale && x_._unsafe_get_target() == x.unsafeGetTensorImpl() &&
        version_ == x._version())
      return {at::Tensor(std::move(values)), at::Tensor(std::move(scale))};
    const at::NoGradGuard no_grad;
    Scaled result = scaled(x, at::kFloat8_e4m3fn);
    x_ = Weak(x.getIntrusivePtr());
    values_ = Weak(result.values.getIntrusivePtr());
    scale_ = Weak(result.scale.getIntrusivePtr());
    version_ = x._version();
    return result;
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  const c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> none_;
  Weak x_{none_}, values_{none_}, scale_{none_};
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
  m.def("scaled_product(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b) -> Tensor",
        torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &scaled_product));
}

class Float8Product : public torch::autograd::Function<Float8Product> {
 public:
  // `values` and `scale` are x [rows, in] in 8 bits. The weight is kept in 16, as other products
  // keep it: it may be a parameter, of which a process holds a part until backward.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor&, const at::Tensor& weight,
                            const at::Tensor& values, const at::Tensor& scale) {
    ctx->save_for_backward({weight, values, scale});
    const Scaled w = scaled(weight, at::kFloat8_e4m3fn);
    return call_product(values, w.values.t(), scale, w.scale);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    require(!at::GradMode::is_enabled(),
            "products in float8 have no second derivative: use compute_dtype = \"bfloat16\"");
    const variable_list saved = ctx->get_saved_variables();
    const Scaled grad = scaled(grads[0], at::kFloat8_e5m2);
    at::Tensor d_x, d_weight;
    if (ctx->needs_input_grad(0)) {
      const Scaled w = scaled(saved[0], at::kFloat8_e4m3fn);
      d_x = call_product(grad.values, w.values, grad.scale, w.scale);
    }
    if (ctx->needs_input_grad(1))
      d_weight = call_product(grad.values.t(), saved[1], grad.scale, saved[2]);
    return {d_x, d_weight, {}, {}};
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
  thread_local LastScaled last_scaled;
  const Scaled from = last_scaled(x);
  const variable_list tensors = intercepted({x.reshape({-1, x.size(-1)}), weight});
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  return Float8Product::apply(tensors[0], tensors[1], from.values.reshape({-1, x.size(-1)}),
                              from.scale)
      .view(sizes);
}

}  // namespace redco
