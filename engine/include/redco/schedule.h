#pragma once

#include <redco/export.h>

#include <concepts>
#include <cstdint>
#include <functional>

namespace redco {

/// A number that depends on the step. Steps are optimizer steps, counted from 0: the first update
/// of a run reads the schedule at 0, however many micro-batches it accumulates.
class Schedule {
 public:
  /// An empty schedule, which must be replaced before it is called.
  Schedule() = default;
  Schedule(double value) : function_([value](int64_t) { return value; }) {}
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, Schedule> &&
           std::is_invocable_r_v<double, const F&, int64_t>) Schedule(F function)
      : function_(std::move(function)) {}

  double operator()(int64_t step) const { return function_(step); }
  explicit operator bool() const { return bool(function_); }

 private:
  std::function<double(int64_t)> function_;
};

REDCO_API Schedule constant(double value);

/// Linear from `init` at step 0 to `peak` at `warmup_steps`, then linear to `end` at `total_steps`,
/// and `end` from there on. The last of `total_steps` updates still has a value before `end`.
/// Throws Error unless 0 <= warmup_steps <= total_steps.
REDCO_API Schedule linear_schedule(double init, double peak, double end, int64_t warmup_steps,
                                   int64_t total_steps);

/// The same warm-up, then half a cosine down to `end` (SGDR, arXiv 1608.03983, eq. 5):
/// `end + (peak - end) * (1 + cos(pi * t)) / 2`, t from 0 to 1 between `warmup_steps` and
/// `total_steps`. This is optax's cosine decay with alpha = end / peak.
REDCO_API Schedule cosine_schedule(double init, double peak, double end, int64_t warmup_steps,
                                   int64_t total_steps);

}  // namespace redco
