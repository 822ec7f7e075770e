// The Adafactor optimizer.

#include "with_learning_rate.h"

#include <redco/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

namespace redco {

using namespace train;

namespace {

double epsilon(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return std::numeric_limits<double>::epsilon();
    case at::kHalf:
      return 0x1p-10;
    case at::kBFloat16:
      return 0x1p-7;
    default:
      return std::numeric_limits<float>::epsilon();
  }
}

at::Tensor root_mean_square(const at::Tensor& tensor) {
  return at::linalg_vector_norm(tensor).div_(std::sqrt(double(tensor.numel())));
}

at::Tensor mean_of_squares(const at::Tensor& tensor, int64_t dim) {
  return at::linalg_vector_norm(tensor, 2, dim, /*keepdim=*/true)
      .square_()
      .div_(double(tensor.size(dim)));
}

class Adafactor : public WithLearningRate<AdafactorOptions> {
 public:
  explicit Adafactor(AdafactorOptions options) : WithLearningRate("adafactor", std::move(options)) {
    require(options_.beta2_decay <= 0, "adafactor: beta2_decay = ", options_.beta2_decay,
            " must not be positive");
    check_at_least("adafactor", "d", options_.d, 1);
    check_at_least("adafactor", "eps1", options_.eps1.value_or(0), 0);
    check_at_least("adafactor", "eps2", options_.eps2, 0);
  }

  Tree slots(const std::vector<NamedTensor>& params) const override {
    Tree::Dict row_var, col_var, variance;
    for (const auto& [name, param] : params) {
      if (param.dim() > 1) {
        std::vector<int64_t> rows = param.sizes().vec(), columns = rows;
        rows[rows.size() - 1] = 1;
        columns[columns.size() - 2] = 1;
        row_var[name] = at::zeros(rows, param.options());
        col_var[name] = at::zeros(columns, param.options());
      } else {
        variance[name] = at::zeros(param.sizes(), param.options());
      }
    }
    return Tree::Dict{{"row_var", row_var},
                      {"col_var", col_var},
                      {"variance", variance},
                      {"step", zero_step(params)}};
  }

  void apply(Update& update, Tree& state, double learning_rate) const override {
    at::Tensor step = state.at("step").tensor();
    step.add_(1);
    at::Tensor steps = step.to(at::kDouble);
    at::Tensor weight = steps.pow(options_.beta2_decay);       // 1 - beta2 at this step
    at::Tensor rho = steps.rsqrt().clamp_max_(learning_rate);  // relative step size
    for (const ParameterGroup& group : groups(update)) {
      for (size_t i : group.members) {
        at::Tensor& param = update.params[i];
        at::Tensor alpha = root_mean_square(param).clamp_min_(options_.eps2) * rho;
        if (group.weight_decay != 0) param.mul_(1 - learning_rate * group.weight_decay);
        at::Tensor change = direction(state, update.names[i], update.grads[i], weight);
        alpha.div_(root_mean_square(change).div_(options_.d).clamp_min_(1));
        param.sub_(change.mul_(alpha));
      }
    }
  }

 private:
  // The gradient divided by the square root of the running second moment, which this call updates.
  at::Tensor direction(Tree& state, const std::string& name, const at::Tensor& grad,
                       const at::Tensor& weight_of_new) const {
    double eps = options_.eps1.value_or(epsilon(grad.scalar_type()));
    at::Tensor weight = weight_of_new.to(grad.scalar_type());
    at::Tensor estimate;
    if (grad.dim() > 1) {
      at::Tensor row_var = moment(state, "row_var", name);
      at::Tensor col_var = moment(state, "col_var", name);
      row_var.lerp_(mean_of_squares(grad, -1), weight);
      col_var.lerp_(mean_of_squares(grad, -2), weight);
      estimate = at::matmul(row_var, col_var).div_(row_var.mean(-2, true).clamp_min_(eps));
    } else {
      at::Tensor variance = moment(state, "variance", name);
      variance.lerp_(grad.square(), weight);
      estimate = variance.clone();
    }
    return estimate.clamp_min_(eps * eps).rsqrt_().mul_(grad);
  }

  static at::Tensor moment(Tree& state, const char* slot, const std::string& name) {
    const auto& tensors = state.at(slot).as<Tree::Dict>();
    auto found = tensors.find(name);
    require(found != tensors.end(), "optimizer state: no '", slot, "' for parameter '", name,
            "'; was the state made for other parameters?");
    return found->second.tensor();
  }
};

}  // namespace

std::shared_ptr<Optimizer> adafactor(AdafactorOptions options) {
  return std::make_shared<Adafactor>(std::move(options));
}

}  // namespace redco
