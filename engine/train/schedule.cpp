// Learning rate schedules: linear and cosine decay after a linear warm-up.

#include <redco/schedule.h>

#include <redco/error.h>

#include <cmath>
#include <numbers>

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

}  // namespace redco
