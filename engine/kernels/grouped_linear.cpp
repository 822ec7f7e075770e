// Products of rows with weights chosen for each row.

#include "groups.h"

#include <redco/autocast.h>
#include <redco/detail/operator_interceptor.h>
#include <redco/error.h>
#include <redco/nn.h>

#include <ATen/ATen.h>
#include <ATen/functorch/DynamicLayer.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace redco {

using namespace kernels;

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The product of local tensors. The weights are [out, in], or [in, out] if transposed.
at::Tensor multiplied(const at::Tensor& x, const at::Tensor& numbers, at::TensorList weights,
                      bool is_transposed) {
  const int64_t n_out = weights[0].size(is_transposed ? 1 : 0);
  at::Tensor y = at::empty({numbers.size(0), numbers.size(1), n_out}, x.options());
  if (y.is_meta() || y.numel() == 0) return y;
  const Groups groups(numbers, int64_t(weights.size()));
  at::Tensor rows = groups.sorted(x, x.dim() == 3),
             sorted = at::empty({rows.size(0), n_out}, x.options());
  groups.for_each([&](size_t i, int64_t begin, int64_t n) {
    if (n == 0) return;
    at::Tensor weight = is_transposed ? weights[i].t() : weights[i];
    sorted.narrow(0, begin, n).copy_(redco::linear(rows.narrow(0, begin, n), weight, at::Tensor()));
  });
  y.view({-1, n_out}).index_copy_(0, groups.order, sorted);
  return y;
}

// Returns a tensor [columns of a, columns of b] for each weight in `like`: the sum of a^T b over
// the choices of this weight. Only the number and the layout of `like` matter.
std::vector<at::Tensor> outer_sums(const at::Tensor& a, const at::Tensor& b,
                                   const at::Tensor& numbers, at::TensorList like) {
  std::vector<at::Tensor> sums;
  for (size_t i = 0; i < like.size(); ++i)
    sums.push_back(at::empty({a.size(-1), b.size(-1)}, a.options()));
  if (a.is_meta()) return sums;
  const Groups groups(numbers, int64_t(like.size()));
  at::Tensor left = groups.sorted(a, a.dim() == 3), right = groups.sorted(b, b.dim() == 3);
  groups.for_each([&](size_t i, int64_t begin, int64_t n) {
    if (n == 0) return void(sums[i].zero_());
    at::mm_out(sums[i], left.narrow(0, begin, n).t(), right.narrow(0, begin, n));
  });
  return sums;
}

TORCH_LIBRARY_FRAGMENT(redco, m) {
  m.def("grouped_linear(Tensor x, Tensor numbers, Tensor[] weights, bool is_transposed) -> Tensor",
        torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &multiplied));
  m.def("grouped_outer(Tensor a, Tensor b, Tensor numbers, Tensor[] like) -> Tensor[]",
        torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &outer_sums));
}

at::Tensor product(const at::Tensor& x, const at::Tensor& numbers, at::TensorList weights,
                   bool is_transposed);
variable_list outer(const at::Tensor& a, const at::Tensor& b, const at::Tensor& numbers,
                    at::TensorList like);

// The gradient of `rows`: summed over the choices of an index if these share a row.
at::Tensor like_rows(const at::Tensor& grad, const at::Tensor& rows) {
  return rows.dim() == 2 ? grad.sum(1) : grad;
}

class GroupedProduct : public torch::autograd::Function<GroupedProduct> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& numbers,
                            at::TensorList weights, bool is_transposed) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("redco::grouped_linear", "")
                               .typed<decltype(multiplied)>();
    variable_list saved{x, numbers};
    saved.insert(saved.end(), weights.begin(), weights.end());
    ctx->save_for_backward(saved);
    ctx->saved_data["is_transposed"] = is_transposed;
    return op.call(x, numbers, weights, is_transposed);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &numbers = saved[1], &grad = grads[0];
    const bool is_transposed = ctx->saved_data["is_transposed"].toBool();
    const at::TensorList weights = at::TensorList(saved).slice(2);
    variable_list result(saved.size() + 1);
    if (ctx->needs_input_grad(0))
      result[0] = like_rows(product(grad, numbers, weights, !is_transposed), x);
    bool any = false;
    for (size_t i = 0; i < weights.size(); ++i) any |= ctx->needs_input_grad(2 + i);
    if (!any) return result;
    const at::Tensor &a = is_transposed ? x : grad, &b = is_transposed ? grad : x;
    variable_list sums = outer(a, b, numbers, weights);
    std::ranges::copy(sums, result.begin() + 2);
    return result;
  }
};

class Outer : public torch::autograd::Function<Outer> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& a, const at::Tensor& b,
                               const at::Tensor& numbers, at::TensorList like) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("redco::grouped_outer", "")
                               .typed<decltype(outer_sums)>();
    ctx->save_for_backward({a, b, numbers});
    return op.call(a, b, numbers, like);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &a = saved[0], &b = saved[1], &numbers = saved[2];
    variable_list result(3 + grads.size());
    result[0] = like_rows(product(b, numbers, grads, false), a);
    result[1] = like_rows(product(a, numbers, grads, true), b);
    return result;
  }
};

at::Tensor product(const at::Tensor& x, const at::Tensor& numbers, at::TensorList weights,
                   bool is_transposed) {
  return GroupedProduct::apply(x, numbers, weights, is_transposed);
}

variable_list outer(const at::Tensor& a, const at::Tensor& b, const at::Tensor& numbers,
                    at::TensorList like) {
  return Outer::apply(a, b, numbers, like);
}

// Multiplies all rows with all weights, for transforms such as vmap, which know only LibTorch's
// operators.
at::Tensor with_all_products(const at::Tensor& x, const at::Tensor& numbers,
                             at::TensorList weights) {
  at::Tensor rows = x.dim() == 2 ? x.unsqueeze(1) : x, sum;
  for (size_t i = 0; i < weights.size(); ++i) {
    at::Tensor chosen = numbers.eq(int64_t(i)).unsqueeze(-1);
    at::Tensor y = at::linear(rows, weights[i]).mul(chosen);
    sum = sum.defined() ? sum + y : y;
  }
  return sum;
}

}  // namespace

void kernels::check_choices(const at::Tensor& x, const at::Tensor& numbers) {
  require(numbers.dim() == 2 && numbers.scalar_type() == at::kLong,
          "grouped_linear: expected numbers [n, k] of int64, got ", numbers.scalar_type(), " ",
          numbers.sizes());
  const bool is_row_each = x.dim() == 3 && x.size(1) == numbers.size(1);
  require((x.dim() == 2 || is_row_each) && x.size(0) == numbers.size(0),
          "grouped_linear: expected x [n, in] or [n, k, in] for numbers ", numbers.sizes(),
          ", got ", x.sizes());
}

at::Tensor grouped_linear(const at::Tensor& x, const at::Tensor& numbers, at::TensorList weights) {
  require(!weights.empty(), "grouped_linear: there are no weights");
  if (auto dtype = autocast_dtype(x.device().type()); dtype && x.scalar_type() != at::kDouble) {
    variable_list converted;
    for (const at::Tensor& weight : weights) converted.push_back(weight.to(*dtype));
    Autocast off(x.device().type(), std::nullopt);
    return grouped_linear(x.to(*dtype), numbers, converted);
  }
  check_choices(x, numbers);
  for (const at::Tensor& weight : weights) {
    require(
        weight.sizes() == weights[0].sizes() && weight.dim() == 2 && weight.size(1) == x.size(-1),
        "grouped_linear: expected weights [out, in] of one shape for x ", x.sizes(), ", got ",
        weight.sizes());
    require(weight.scalar_type() == x.scalar_type() && x.is_floating_point(),
            "grouped_linear: x and the weights must have one floating-point dtype, they have ",
            x.scalar_type(), " and ", weight.scalar_type());
  }
  if (at::functorch::maybeCurrentDynamicLayer()) return with_all_products(x, numbers, weights);
  variable_list tensors{x, numbers};
  tensors.insert(tensors.end(), weights.begin(), weights.end());
  tensors = intercepted(std::move(tensors));
  return product(tensors[0], tensors[1], at::TensorList(tensors).slice(2), false);
}

}  // namespace redco
