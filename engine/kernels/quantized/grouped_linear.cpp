// Products of rows with quantized weights chosen for each row.

#include "../groups.h"
#include "products.h"

#include <redco/autocast.h>
#include <redco/detail/operator_interceptor.h>
#include <redco/error.h>
#include <redco/nn.h>

#include <ATen/functorch/DynamicLayer.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <string>
#include <vector>

namespace redco {

using namespace quantized;
using namespace kernels;

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The product of local tensors: x [n, b, size] or [n, k, b, size] -> [n, k, out], or if transposed
// [n, k, out] -> [n, k, b, size].
at::Tensor grouped(const at::Tensor& x, const at::Tensor& numbers, at::TensorList weights,
                   c10::string_view type, bool is_transposed, bool is_few_rows) {
  const at::Tensor& first = weights[0];
  std::vector<int64_t> sizes = numbers.sizes().vec();
  if (is_transposed)
    sizes.insert(sizes.end(), {first.size(1), find_block_type(std::string(type))->size});
  else
    sizes.push_back(first.size(0));
  at::Tensor y = at::empty(sizes, x.options());
  if (y.is_meta() || y.numel() == 0) return y;
  const Groups groups(numbers, int64_t(weights.size()));
  const at::Tensor rows = groups.sorted(x, is_transposed || x.dim() == 4);
  at::Tensor sorted = at::empty_like(y.flatten(0, 1));
  groups.for_each([&](size_t i, int64_t begin, int64_t n) {
    if (n == 0) return;
    const at::Tensor own = rows.narrow(0, begin, n);
    sorted.narrow(0, begin, n)
        .copy_(is_transposed ? multiplied_transposed(own, weights[i], type)
                             : multiplied(own, weights[i], type, is_few_rows));
  });
  y.flatten(0, 1).index_copy_(0, groups.order, sorted);
  return y;
}

TORCH_LIBRARY_FRAGMENT(redco, m) {
  m.def(
      "grouped_quantized_linear(Tensor x, Tensor numbers, Tensor[] blocks, str type, "
      "bool is_transposed, bool is_few_rows) -> Tensor",
      torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &grouped));
}

class QuantizedGroupedProduct : public torch::autograd::Function<QuantizedGroupedProduct> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& numbers,
                            at::TensorList weights, const std::string& type, bool is_transposed,
                            bool is_few_rows) {
    variable_list saved{numbers};
    saved.insert(saved.end(), weights.begin(), weights.end());
    ctx->save_for_backward(saved);
    ctx->saved_data["type"] = type;
    ctx->saved_data["is_transposed"] = is_transposed;
    ctx->saved_data["is_shared"] = !is_transposed && x.dim() == 3;
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("redco::grouped_quantized_linear", "")
                               .typed<decltype(grouped)>();
    return op.call(x, numbers, weights, type, is_transposed, is_few_rows);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    variable_list result(saved.size() + 4);
    result[0] = apply(grads[0], saved[0], at::TensorList(saved).slice(1),
                      ctx->saved_data["type"].toStringRef(),
                      !ctx->saved_data["is_transposed"].toBool(), false);
    // All choices of an index share its row.
    if (ctx->saved_data["is_shared"].toBool()) result[0] = result[0].sum(1);
    return result;
  }
};

}  // namespace

at::Tensor grouped_linear(const at::Tensor& x, const at::Tensor& numbers, at::TensorList weights,
                          const std::string& name) {
  require(!weights.empty(), "grouped_linear: there are no weights");
  const BlockType& type = checked_type("grouped_linear", weights[0], name);
  check_choices(x, numbers);
  const int64_t n_in = weights[0].dim() == 3 ? weights[0].size(1) * type.size : -1;
  for (const at::Tensor& weight : weights)
    require(weight.scalar_type() == at::kByte && weight.sizes() == weights[0].sizes() &&
                x.size(-1) == n_in && x.is_floating_point(),
            "grouped_linear: expected weights [out, n, ", type.bytes, "] of uint8 of one shape, ",
            "with blocks of ", type.size, " elements for floats x ", x.sizes(), ", got ",
            weight.scalar_type(), " ", weight.sizes(), " for ", x.scalar_type(), " x");
  if (auto dtype = autocast_dtype(x.device().type());
      dtype && x.scalar_type() != at::kDouble && x.scalar_type() != *dtype)
    return grouped_linear(x.to(*dtype), numbers, weights, name);
  // Transforms such as vmap know LibTorch's operators only.
  if (at::functorch::maybeCurrentDynamicLayer()) {
    std::vector<at::Tensor> dense;
    for (const at::Tensor& weight : weights)
      dense.push_back(dequantize(weight, name, x.scalar_type()));
    return grouped_linear(x, numbers, dense);
  }
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = weights[0].size(1);
  sizes.push_back(type.size);
  std::vector<at::Tensor> tensors{x.reshape(sizes), numbers};
  tensors.insert(tensors.end(), weights.begin(), weights.end());
  tensors = intercepted(std::move(tensors));
  return QuantizedGroupedProduct::apply(tensors[0], tensors[1], at::TensorList(tensors).slice(2),
                                        name, false, may_be_few_rows(x));
}

}  // namespace redco
