// freeze: trains only some of the parameters.

#include "parameter_groups.h"

#include <redco/error.h>
#include <redco/optim.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace redco {

namespace {

class Freeze : public Optimizer {
 public:
  Freeze(std::shared_ptr<Optimizer> optimizer, ParamFilter frozen)
      : optimizer_(std::move(optimizer)), frozen_(std::move(frozen)) {
    require(optimizer_ != nullptr, "freeze: the optimizer is missing");
    require(bool(frozen_), "freeze: the function that selects the frozen parameters is missing");
  }

  Tree init(const std::vector<NamedTensor>& params) const override {
    return optimizer_->init(train::trained_by(*this, params));
  }

  // Nothing to filter: `update` only holds parameters that are trained.
  void update(Update& update, Tree& state) const override { optimizer_->update(update, state); }

  Stage stage() const override { return optimizer_->stage(); }

  void check(const std::vector<NamedTensor>& params) const override {
    train::check_patterns("freeze", frozen_, params);
    std::vector<NamedTensor> others;
    for (const auto& param : params)
      if (!frozen_(param.first, param.second)) others.push_back(param);
    optimizer_->check(others);
  }

  bool trains(const std::string& name, const at::Tensor& param) const override {
    return !frozen_(name, param) && optimizer_->trains(name, param);
  }

  std::vector<double> learning_rates(int64_t step, const Tree& state) const override {
    return optimizer_->learning_rates(step, state);
  }

  void observe(const Metrics& metrics, Tree& state) const override {
    optimizer_->observe(metrics, state);
  }
  bool needs_metrics() const override { return optimizer_->needs_metrics(); }

  void collect_averages(const Tree& state, Tree::Dict& averages) const override {
    optimizer_->collect_averages(state, averages);
  }

 private:
  std::shared_ptr<Optimizer> optimizer_;
  ParamFilter frozen_;
};

}  // namespace

std::shared_ptr<Optimizer> freeze(std::shared_ptr<Optimizer> optimizer, ParamFilter frozen) {
  return std::make_shared<Freeze>(std::move(optimizer), std::move(frozen));
}

}  // namespace redco
