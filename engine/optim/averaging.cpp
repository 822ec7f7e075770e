// ema and lookahead: the entries of a chain that follow the update of the parameters.

#include "log_actions.h"
#include "parameter_groups.h"

#include <redco/error.h>
#include <redco/optim.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/ScalarType.h>

#include <utility>

namespace redco {

using namespace train;

namespace {

Tree copies(const std::vector<NamedTensor>& params, bool is_wide) {
  Tree::Dict copies;
  for (const auto& [name, param] : params) {
    at::ScalarType type = param.scalar_type();
    if (is_wide) type = c10::promoteTypes(at::kFloat, type);
    at::Tensor source = param.detach();
    copies[name] = as_state(at::empty_like(source, source.options().dtype(type)).copy_(source));
  }
  return copies;
}

// Works on the updated parameters at every `every`-th step.
class Averaging : public Optimizer {
 public:
  Averaging(const char* name, int64_t every) : every_(every), name_(name) {
    require(every > 0, name, ": every = ", every, " must be positive");
  }

  void update(Update& update, Tree& state) const final {
    if ((update.step + 1) % every_ != 0) return;
    at::NoGradGuard no_grad;
    for (const ParameterGroup& group : update.groups(*this, 0, {}))
      apply(update, group, select(state, name_, update, group));
  }
  Stage stage() const final { return Stage::updated; }

 protected:
  virtual void apply(const Update& update, const ParameterGroup& group,
                     const std::vector<at::Tensor>& averages) const = 0;

 private:
  int64_t every_;
  const char* name_;  // also that of its state
};

class Ema : public Averaging {
 public:
  Ema(Schedule decay, int64_t every) : Averaging("ema", every), decay_(std::move(decay)) {
    require(bool(decay_) && !decay_.plateau(),
            "ema: decay is missing: give a number or a function of the step");
  }

  Tree init(const std::vector<NamedTensor>& params) const override {
    return Tree::Dict{{"ema", copies(params, /*is_wide=*/true)}};
  }
  void collect_averages(const Tree& state, Tree::Dict& averages) const override {
    for (const auto& [name, average] : state.at("ema").as<Tree::Dict>()) averages[name] = average;
  }

 protected:
  void apply(const Update& update, const ParameterGroup& group,
             const std::vector<at::Tensor>& averages) const override {
    double decay = decay_(update.step);
    require(decay >= 0 && decay <= 1, "ema: decay is ", decay, " at step ", update.step,
            "; it must be from 0 to 1");
    log_settings("ema", {{"decay", decay}});
    std::vector<at::Tensor> params = select(update.params, group);
    for (size_t i = 0; i < params.size(); ++i)
      params[i] = params[i].detach().to(averages[i].scalar_type());
    at::_foreach_lerp_(averages, params, 1 - decay);
  }

 private:
  Schedule decay_;
};

class Lookahead : public Averaging {
 public:
  Lookahead(int64_t every, double alpha) : Averaging("slow", every), alpha_(alpha) {
    require(alpha > 0 && alpha <= 1, "lookahead: alpha = ", alpha,
            " must be more than 0 and at most 1");
  }

  Tree init(const std::vector<NamedTensor>& params) const override {
    return Tree::Dict{{"slow", copies(params, /*is_wide=*/false)}};
  }

 protected:
  void apply(const Update& update, const ParameterGroup& group,
             const std::vector<at::Tensor>& slow) const override {
    log_settings("lookahead", {{"alpha", alpha_}});
    std::vector<at::Tensor> params = select(update.params, group);
    at::_foreach_lerp_(slow, params, alpha_);
    at::_foreach_copy_(params, slow);
  }

 private:
  double alpha_;
};

}  // namespace

std::shared_ptr<Optimizer> ema(Schedule decay, int64_t every) {
  return std::make_shared<Ema>(std::move(decay), every);
}

std::shared_ptr<Optimizer> lookahead(int64_t every, double alpha) {
  require(every > 0, "lookahead: every = ", every, " must be positive");
  return std::make_shared<Lookahead>(every, alpha);
}

}  // namespace redco
