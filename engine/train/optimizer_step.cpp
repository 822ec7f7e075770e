// One step of an optimizer.

#include "optimizer_step.h"

#include <redco/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <string>
#include <utility>

namespace redco::train {

OptimizerStep::OptimizerStep(std::shared_ptr<Optimizer> optimizer,
                             std::shared_ptr<Deployer> deployer)
    : optimizer_(std::move(optimizer)), deployer_(std::move(deployer)) {
  require(optimizer_->updates_params(),
          "Trainer: the optimizer only changes gradients: chain it with one that updates the "
          "parameters (adamw, sgd, ...)");
}

Tree OptimizerStep::init(const TrainedParams& params, std::optional<Tree> given) const {
  at::NoGradGuard no_grad;
  std::vector<NamedTensor> trained;
  for (size_t i = 0; i < params.names().size(); ++i)
    trained.emplace_back(params.names()[i], params.optimizer_views()[i]);
  return params.laid_out_like_params(given ? std::move(*given) : optimizer_->init(trained));
}

// Usually called once: optimizers cache data derived from this list.
void OptimizerStep::select(const TrainedParams& params, const std::vector<size_t>& present,
                           int64_t step) {
  update_ = {};
  for (size_t i : present) {
    update_.names.push_back(params.names()[i]);
    update_.params.push_back(params.optimizer_views()[i]);
  }
  present_ = present;
  if (present.size() == params.names().size()) return;
  std::string missing;
  for (size_t i = 0; i < params.names().size(); ++i)
    if (!std::binary_search(present.begin(), present.end(), i))
      missing += (missing.empty() ? "" : ", ") + params.names()[i];
  deployer_->log_info("These parameters got no gradient and stay as they are: " + missing, "",
                      step);
}

at::Tensor OptimizerStep::apply(const TrainedParams& params, std::vector<at::Tensor> grads,
                                int64_t step, Tree& opt_state,
                                const std::function<bool(const at::Tensor& norm)>& accepts) {
  at::NoGradGuard no_grad;
  std::vector<size_t> present;
  present.reserve(grads.size());
  for (size_t i = 0; i < grads.size(); ++i)
    if (grads[i].defined()) present.push_back(i);
  require(!present.empty(), "no gradient reached any of the ", grads.size(),
          " trained parameters: the loss must be computed from the params it is given");
  if (present != present_) select(params, present, step);
  update_.grads.clear();
  for (size_t i : present) {
    const at::Tensor& view = params.optimizer_views()[i];
    // The optimizers need it in the memory order of the parameter; a collective may have changed
    // that.
    if (grads[i].strides() != view.strides()) grads[i] = at::empty_like(view).copy_(grads[i]);
    update_.grads.push_back(std::move(grads[i]));
  }
  update_.step = step;
  update_.grads_changed();
  at::Tensor norm = update_.global_norm();
  if (accepts(norm)) optimizer_->update(update_, opt_state);
  update_.grads.clear();
  return norm;
}

}  // namespace redco::train
