// Learning rate schedules.

#include <redco/schedule.h>

#include <redco/error.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

namespace redco {

namespace {

// `decay(t)` interpolates from peak to end: 1 at t = 0 and 0 at t = 1.
template <class Decay>
Schedule warmup_then(const char* name, double init, double peak, double end, int64_t warmup_steps,
                     int64_t total_steps, Decay decay) {
  require(warmup_steps >= 0 && warmup_steps <= total_steps, name, ": warmup_steps = ", warmup_steps,
          " must be between 0 and total_steps = ", total_steps);
  return [=](int64_t step) {
    if (step < warmup_steps) return init + (peak - init) * double(step) / double(warmup_steps);
    if (step >= total_steps) return end;
    double t = double(step - warmup_steps) / double(total_steps - warmup_steps);
    return end + (peak - end) * decay(t);
  };
}

}  // namespace

Schedule constant(double value) { return value; }

Schedule constant_schedule(double init, double peak, int64_t warmup_steps) {
  require(warmup_steps >= 0, "constant_schedule: warmup_steps = ", warmup_steps,
          " must not be negative");
  return [=](int64_t step) {
    if (step >= warmup_steps) return peak;
    return init + (peak - init) * double(step) / double(warmup_steps);
  };
}

Schedule linear_schedule(double init, double peak, double end, int64_t warmup_steps,
                         int64_t total_steps) {
  return warmup_then("linear_schedule", init, peak, end, warmup_steps, total_steps,
                     [](double t) { return 1 - t; });
}

Schedule cosine_schedule(double init, double peak, double end, int64_t warmup_steps,
                         int64_t total_steps) {
  return warmup_then("cosine_schedule", init, peak, end, warmup_steps, total_steps,
                     [](double t) { return (1 + std::cos(std::numbers::pi * t)) / 2; });
}

Schedule polynomial_schedule(double init, double peak, double end, double power,
                             int64_t warmup_steps, int64_t total_steps) {
  require(power > 0 && std::isfinite(power), "polynomial_schedule: power = ", power,
          " must be positive");
  return warmup_then("polynomial_schedule", init, peak, end, warmup_steps, total_steps,
                     [power](double t) { return std::pow(1 - t, power); });
}

Schedule exponential_schedule(double init, double peak, double end, double decay_rate,
                              int64_t decay_steps, bool staircase, int64_t warmup_steps) {
  require(decay_rate > 0 && std::isfinite(decay_rate),
          "exponential_schedule: decay_rate = ", decay_rate, " must be positive");
  require(decay_steps > 0, "exponential_schedule: decay_steps = ", decay_steps,
          " must be positive");
  require(warmup_steps >= 0, "exponential_schedule: warmup_steps = ", warmup_steps,
          " must not be negative");
  return [=](int64_t step) {
    if (step < warmup_steps) return init + (peak - init) * double(step) / double(warmup_steps);
    double n = double(step - warmup_steps) / double(decay_steps);
    double value = peak * std::pow(decay_rate, staircase ? std::floor(n) : n);
    return decay_rate < 1 ? std::max(value, end) : value;
  };
}

Schedule one_cycle_schedule(double peak, int64_t total_steps, double pct_start, double div_factor,
                            double final_div_factor, bool linear) {
  require(total_steps > 1, "one_cycle_schedule: total_steps = ", total_steps,
          " must be more than 1");
  require(pct_start > 0 && pct_start < 1, "one_cycle_schedule: pct_start = ", pct_start,
          " must be between 0 and 1");
  require(div_factor > 0 && final_div_factor > 0, "one_cycle_schedule: div_factor = ", div_factor,
          " and final_div_factor = ", final_div_factor, " must be positive");
  double first = peak / div_factor, last = first / final_div_factor;
  double top = pct_start * double(total_steps) - 1, end = double(total_steps - 1);
  auto between = [linear](double from, double to, double t) {
    if (linear) return from + (to - from) * t;
    return to + (from - to) / 2 * (1 + std::cos(std::numbers::pi * t));
  };
  return [=](int64_t step) {
    double at = std::min(double(step), end);
    if (at <= top) return between(first, peak, at / top);
    return between(peak, last, (at - top) / (end - top));
  };
}

Schedule wsd_schedule(double init, double peak, double end, int64_t warmup_steps,
                      int64_t decay_steps, int64_t total_steps, const std::string& decay) {
  require(warmup_steps >= 0 && decay_steps >= 0 && warmup_steps + decay_steps <= total_steps,
          "wsd_schedule: warmup_steps = ", warmup_steps, " and decay_steps = ", decay_steps,
          " must not be negative, and together at most total_steps = ", total_steps);
  static const std::map<std::string, double (*)(double)> shapes = {
      {"linear", [](double t) { return 1 - t; }},
      {"cosine", [](double t) { return (1 + std::cos(std::numbers::pi * t)) / 2; }},
      {"sqrt", [](double t) { return 1 - std::sqrt(t); }}};
  auto shape = shapes.find(decay);
  require(shape != shapes.end(), "wsd_schedule: decay = \"", decay,
          "\" is not one of \"linear\", \"cosine\" and \"sqrt\"");
  return [=, shape = shape->second](int64_t step) {
    if (step < warmup_steps) return init + (peak - init) * double(step) / double(warmup_steps);
    if (step >= total_steps) return end;
    int64_t n = step - (total_steps - decay_steps);
    return n <= 0 ? peak : end + (peak - end) * shape(double(n) / double(decay_steps));
  };
}

Schedule piecewise_schedule(std::vector<Schedule> pieces, std::vector<int64_t> boundaries) {
  require(!pieces.empty() && pieces.size() == boundaries.size() + 1,
          "piecewise_schedule: there are ", pieces.size(), " values and ", boundaries.size(),
          " boundaries; there must be one value more");
  for (size_t i = 0; i < boundaries.size(); ++i)
    require(boundaries[i] > (i == 0 ? 0 : boundaries[i - 1]), "piecewise_schedule: boundary ",
            i + 1, ", ", boundaries[i], ", must be more than ", i == 0 ? 0 : boundaries[i - 1]);
  for (const Schedule& piece : pieces)
    require(bool(piece) && !piece.plateau(),
            "piecewise_schedule: its values are numbers and schedules; on_plateau is for an "
            "optimizer alone");
  return [pieces = std::move(pieces), boundaries = std::move(boundaries)](int64_t step) {
    size_t i = 0;
    while (i < boundaries.size() && step >= boundaries[i]) ++i;
    return pieces[i](step - (i == 0 ? 0 : boundaries[i - 1]));
  };
}

}  // namespace redco
