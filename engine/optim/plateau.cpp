// on_plateau: a learning rate that follows a metric.

#include "plateau.h"

#include <redco/error.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>

namespace redco {

namespace train {

namespace {

constexpr double worst = std::numeric_limits<double>::max();  // JSON has no infinity

double number(const Tree& state, const char* name) {
  const Tree& value = state.at(name);
  return value.is<int64_t>() ? double(value.as<int64_t>()) : value.as<double>();
}

bool is_better(const PlateauOptions& options, double value, double best) {
  double sign = options.maximize ? -1 : 1;
  if (options.is_absolute) return sign * value < sign * best - options.threshold;
  return sign * value < sign * best * (1 - sign * options.threshold);
}

}  // namespace

Tree first_state(const PlateauOptions& options) {
  return Tree::Dict{{"value", options.value},
                    {"best", options.maximize ? -worst : worst},
                    {"n_bad", 0},
                    {"n_cooldown", 0}};
}

double rate_of(const Tree& state) { return number(state, "value"); }

void observe(const PlateauOptions& options, const Metrics& metrics, Tree& state) {
  auto found = metrics.find(options.metric);
  if (found == metrics.end()) {
    std::string names;
    for (const auto& [name, value] : metrics) names += (names.empty() ? "" : ", ") + name;
    fail("on_plateau: the evaluation has no metric '", options.metric, "'; it has ",
         names.empty() ? "none" : names);
  }
  double value = number(state, "value"), best = number(state, "best");
  auto n_bad = int64_t(number(state, "n_bad")), n_cooldown = int64_t(number(state, "n_cooldown"));
  if (is_better(options, found->second, best)) {
    best = found->second;
    n_bad = 0;
  } else {
    ++n_bad;
  }
  if (n_cooldown > 0) {
    --n_cooldown;
    n_bad = 0;
  }
  if (n_bad > options.patience) {
    double reduced = std::max(value * options.factor, options.min_value);
    if (value - reduced > options.eps) value = reduced;
    n_cooldown = options.cooldown;
    n_bad = 0;
  }
  state =
      Tree::Dict{{"value", value}, {"best", best}, {"n_bad", n_bad}, {"n_cooldown", n_cooldown}};
}

}  // namespace train

Schedule on_plateau(PlateauOptions options) {
  auto check = [](const char* name, double value, double least) {
    require(value >= least && std::isfinite(value), "on_plateau: ", name, " = ", value,
            " must be at least ", least, " and finite");
  };
  check("value", options.value, 0);
  check("threshold", options.threshold, 0);
  check("min_value", options.min_value, 0);
  check("eps", options.eps, 0);
  check("patience", double(options.patience), 0);
  check("cooldown", double(options.cooldown), 0);
  require(options.factor >= 0 && options.factor < 1, "on_plateau: factor = ", options.factor,
          " must be at least 0 and less than 1");
  Schedule schedule(options.value);
  schedule.plateau_ = std::make_shared<const PlateauOptions>(std::move(options));
  return schedule;
}

}  // namespace redco
