#pragma once

#include "log_actions.h"
#include "parameter_groups.h"
#include "plateau.h"

#include <redco/error.h>

#include <ATen/core/grad_mode.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace redco::train {

/// An optimizer that updates parameters. `Options` has the members learning_rate, weight_decay and
/// mask, and lists the others in `visit`.
template <class Options>
class WithLearningRate : public Optimizer {
 public:
  /// `name` must be a string literal.
  WithLearningRate(const char* name, Options options)
      : options_(std::move(options)), plateau_(options_.learning_rate.plateau()), name_(name) {
    options_.learning_rate = checked_learning_rate(name, std::move(options_.learning_rate));
    check_at_least(name, "weight_decay", options_.weight_decay, 0);
  }

  Tree init(const std::vector<NamedTensor>& params) const final {
    Tree state = slots(params);
    if (plateau_) state["plateau"] = first_state(*plateau_);
    return state;
  }

  void update(Update& update, Tree& state) const final {
    at::NoGradGuard no_grad;
    double learning_rate = rate(update.step, state);
    Settings settings{{"learning_rate", learning_rate}, {"weight_decay", options_.weight_decay}};
    Options::visit(options_,
                   [&](const char* name, const auto& value) { append(settings, name, value); });
    log_settings(name_, settings);
    apply(update, state, learning_rate);
  }

  Stage stage() const override { return Stage::params; }
  void check(const std::vector<NamedTensor>& params) const override {
    check_patterns((name_ + std::string(": mask")).c_str(), options_.mask, params);
  }
  std::vector<double> learning_rates(int64_t step, const Tree& state) const override {
    return {rate(step, state)};
  }
  void observe(const Metrics& metrics, Tree& state) const override {
    if (plateau_) train::observe(*plateau_, metrics, state.at("plateau"));
  }
  bool needs_metrics() const override { return plateau_ != nullptr; }

 protected:
  /// The tensors of the state before the first step.
  virtual Tree slots(const std::vector<NamedTensor>& params) const = 0;

  /// Performs one step, without gradients. The step's number is that of `update`.
  virtual void apply(Update& update, Tree& state, double learning_rate) const = 0;

  const std::vector<ParameterGroup>& groups(Update& update) const {
    return update.groups(*this, options_.weight_decay, options_.mask);
  }

  Options options_;

 private:
  double rate(int64_t step, const Tree& state) const {
    return plateau_ ? rate_of(state.at("plateau")) : options_.learning_rate(step);
  }

  static void append(Settings& settings, const char* name, double value) {
    settings.emplace_back(name, value);
  }
  static void append(Settings& settings, const char* name, const std::optional<double>& value) {
    if (value) settings.emplace_back(name, *value);
  }
  template <size_t n>
  static void append(Settings& settings, const char* name, const std::array<double, n>& values) {
    for (size_t i = 0; i < n; ++i)
      settings.emplace_back(name + ("[" + std::to_string(i + 1) + "]"), values[i]);
  }
  static void append(Settings& settings, const char* name, const std::string& value) {
    settings.emplace_back(name + (" = " + value + ", length"), double(value.size()));
  }

  std::shared_ptr<const PlateauOptions> plateau_;
  const char* name_;
};

}  // namespace redco::train
