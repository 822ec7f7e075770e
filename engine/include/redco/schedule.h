#pragma once

#include <redco/export.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace redco {

/// A learning rate that is reduced when a metric stops improving, as
/// torch.optim.lr_scheduler.ReduceLROnPlateau does. Its state is part of the optimizer's.
struct PlateauOptions {
  double value = 0;  ///< the first learning rate
  std::string metric = "loss";
  bool maximize = false;
  double factor = 0.1;
  int64_t patience = 10;  ///< evaluations without an improvement that change nothing
  double threshold = 1e-4;
  bool is_absolute = false;  ///< whether the threshold is absolute, or a part of the best value
  int64_t cooldown = 0;      ///< evaluations after a reduction that do not count
  double min_value = 0;
  double eps = 1e-8;  ///< smaller reductions are left out
};

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

  /// Null unless it is `on_plateau`, whose function returns the first value.
  const std::shared_ptr<const PlateauOptions>& plateau() const { return plateau_; }

 private:
  friend REDCO_API Schedule on_plateau(PlateauOptions options);

  std::function<double(int64_t)> function_;
  std::shared_ptr<const PlateauOptions> plateau_;
};

REDCO_API Schedule constant(double value);

/// Linear from `init` at step 0 to `peak` at `warmup_steps`, and `peak` from there on. Throws Error
/// unless 0 <= warmup_steps.
REDCO_API Schedule constant_schedule(double init, double peak, int64_t warmup_steps);

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

/// The same warm-up, then `end + (peak - end) * (1 - t) ** power`.
REDCO_API Schedule polynomial_schedule(double init, double peak, double end, double power,
                                       int64_t warmup_steps, int64_t total_steps);

/// The same warm-up, then `peak * decay_rate ** (n / decay_steps)` after n more steps, and with
/// `staircase` n / decay_steps rounded down; never beyond `end`.
REDCO_API Schedule exponential_schedule(double init, double peak, double end, double decay_rate,
                                        int64_t decay_steps, bool staircase, int64_t warmup_steps);

/// As torch.optim.lr_scheduler.OneCycleLR: half a cosine (or with `linear` a line) from
/// `peak / div_factor` up to `peak` in `pct_start` of the steps, then down to
/// `peak / div_factor / final_div_factor` at the last of `total_steps`.
REDCO_API Schedule one_cycle_schedule(double peak, int64_t total_steps, double pct_start,
                                      double div_factor, double final_div_factor, bool linear);

/// The same warm-up, `peak` until `decay_steps` before the end, then down to `end` at
/// `total_steps` (warm-up, stable, decay): `decay` is "linear", "cosine" or "sqrt", which is
/// `end + (peak - end) * (1 - sqrt(t))`.
REDCO_API Schedule wsd_schedule(double init, double peak, double end, int64_t warmup_steps,
                                int64_t decay_steps, int64_t total_steps, const std::string& decay);

/// `pieces[i]` from `boundaries[i - 1]`, from which it counts its steps, to `boundaries[i]`.
/// Throws Error unless the boundaries rise and are one fewer than the pieces.
REDCO_API Schedule piecewise_schedule(std::vector<Schedule> pieces,
                                      std::vector<int64_t> boundaries);

/// See PlateauOptions. For an optimizer's learning rate only.
REDCO_API Schedule on_plateau(PlateauOptions options);

}  // namespace redco
