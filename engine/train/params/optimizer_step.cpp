// One step of an optimizer.

#include "optimizer_step.h"

#include "../../optim/parameter_groups.h"

#include <redco/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace redco::train {

namespace {

constexpr size_t most_kept = 16;  // sets of leaves with gradients

}  // namespace

OptimizerStep::OptimizerStep(std::shared_ptr<Optimizer> optimizer,
                             std::shared_ptr<Deployer> deployer, bool offloads)
    : optimizer_(std::move(optimizer)), deployer_(std::move(deployer)), offloads_(offloads) {
  require(optimizer_->stage() == Stage::params,
          "Trainer: the optimizer does not update the parameters: chain it with one that does "
          "(adamw, sgd, ...)");
}

Tree OptimizerStep::init(const TrainedParams& params, std::optional<Tree> given) const {
  at::NoGradGuard no_grad;
  std::vector<NamedTensor> trained;
  for (size_t i = 0; i < params.names().size(); ++i)
    trained.emplace_back(params.names()[i], params.optimizer_views()[i]);
  if (given) check_state(*optimizer_, *given, trained);
  const StatesOnHost on_host(offloads_);
  const Tree state = given ? std::move(*given) : optimizer_->init(trained);
  return map_tensors(state, [&](const std::string& path, const at::Tensor& tensor) {
    return as_state(params.laid_out_like_params(path, tensor));
  });
}

Tree OptimizerStep::first_state(const TrainedParams& params, const Tree& like) const {
  at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> by_name;
  for (const auto& [name, tensor] : named_tensors(like)) by_name[name] = tensor;
  std::vector<NamedTensor> trained;
  for (const std::string& name : params.names()) trained.emplace_back(name, by_name.at(name));
  return optimizer_->init(trained);
}

// The update of the leaves that have gradients. Usually these are always the same, or alternate
// between a few sets: optimizers cache data derived from them.
Update& OptimizerStep::update_of(const TrainedParams& params, const std::vector<size_t>& present,
                                 int64_t step) {
  if (updates_.size() >= most_kept && !updates_.contains(present)) updates_.clear();
  auto [entry, is_new] = updates_.try_emplace(present);
  Update& update = entry->second;
  if (!is_new) return update;
  for (size_t i : present) {
    update.names.push_back(params.names()[i]);
    update.params.push_back(params.optimizer_views()[i]);
  }
  if (!logs_missing_ || present.size() == params.names().size()) return update;
  std::string missing;
  for (size_t i = 0; i < params.names().size(); ++i)
    if (!std::binary_search(present.begin(), present.end(), i))
      missing += (missing.empty() ? "" : ", ") + params.names()[i];
  deployer_->log_info("These parameters got no gradient and stay as they are: " + missing, "",
                      step);
  return update;
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
  Update& update = update_of(params, present, step);
  update.grads.clear();
  for (size_t i : present) {
    const at::Tensor& view = params.optimizer_views()[i];
    // The optimizers need it in the memory order of the parameter; a collective may have changed
    // that.
    if (grads[i].strides() != view.strides()) grads[i] = at::empty_like(view).copy_(grads[i]);
    update.grads.push_back(std::move(grads[i]));
  }
  update.step = step;
  update.grads_changed();
  at::Tensor norm = update.global_norm();
  if (accepts(norm)) optimizer_->update(update, opt_state);
  update.grads.clear();
  return norm;
}

}  // namespace redco::train
