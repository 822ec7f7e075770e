#pragma once

#include "parameter_groups.h"
#include "record_alike.h"

#include <ATen/core/grad_mode.h>

#include <array>
#include <cstdint>
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
  WithLearningRate(const char* name, Options options) : options_(std::move(options)), name_(name) {
    options_.learning_rate = checked_learning_rate(name, std::move(options_.learning_rate));
    check_at_least(name, "weight_decay", options_.weight_decay, 0);
  }

  void update(Update& update, Tree& state) const final {
    at::NoGradGuard no_grad;
    double learning_rate = options_.learning_rate(update.step);
    Settings settings{{"learning_rate", learning_rate}, {"weight_decay", options_.weight_decay}};
    Options::visit(options_,
                   [&](const char* name, const auto& value) { append(settings, name, value); });
    record_settings(name_, settings);
    apply(update, state, learning_rate);
  }

  bool updates_params() const override { return true; }
  std::optional<double> learning_rate(int64_t step) const override {
    return options_.learning_rate(step);
  }

 protected:
  /// Performs one step, without gradients. The step's number is that of `update`.
  virtual void apply(Update& update, Tree& state, double learning_rate) const = 0;

  const std::vector<ParameterGroup>& groups(Update& update) const {
    return update.groups(*this, options_.weight_decay, options_.mask);
  }

  Options options_;

 private:
  static void append(Settings& settings, const char* name, double value) {
    settings.emplace_back(name, value);
  }
  static void append(Settings& settings, const char* name, const std::optional<double>& value) {
    if (value) settings.emplace_back(name, *value);
  }
  static void append(Settings& settings, const char* name, const std::array<double, 2>& values) {
    for (size_t i = 0; i < 2; ++i)
      settings.emplace_back(name + ("[" + std::to_string(i + 1) + "]"), values[i]);
  }

  const char* name_;
};

}  // namespace redco::train
