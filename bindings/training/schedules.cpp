// redco.optim: learning rate schedules.

#include "optim.h"
#include "state/arguments.h"
#include "state/object.h"
#include "state/registry.h"
#include "state/values.h"

#include <redco/error.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace redco::lua {

Schedule check_schedule(lua_State* L, int index, const std::string& what) {
  if (lua_type(L, index) == LUA_TNUMBER) {
    double value = lua_tonumber(L, index);
    require(value >= 0 && std::isfinite(value), what, ": must be finite and not below 0, it is ",
            value);
    return Schedule(value);
  }
  require(lua_isfunction(L, index), what, ": expected a number or a function of the step, got ",
          described(L, index));
  return Schedule([function = Ref(L, index), what](int64_t step) {
    lua_State* state = function.state();
    return balanced(state, [&] {
      function.push();
      push_integer(state, step);
      call(state, 1, 1);
      require(lua_type(state, -1) == LUA_TNUMBER, what, ": the schedule returned ",
              described(state, -1), " for step ", step, ", expected a number");
      return double(lua_tonumber(state, -1));
    });
  });
}

namespace {

int call_schedule(lua_State* L) {
  auto schedule = check_object<LuaSchedule>(L, lua_upvalueindex(1), "schedule");
  lua_pushnumber(L, schedule->schedule(check_integer(L, 1, "schedule: step")));
  return 1;
}

// The arguments of schedules that begin with a warm-up.
struct Warmup {
  explicit Warmup(NamedArguments& args)
      : init(args.get<double>("init_value", 0)),
        peak(args.required<double>("peak_value")),
        steps(args.get<int64_t>("warmup_steps", 0)) {}

  double init, peak;
  int64_t steps;
};

int lua_constant(lua_State* L) {
  NamedArguments args(L, 1, "redco.optim.constant_schedule");
  Warmup warmup(args);
  args.finish();
  push_schedule(L, constant_schedule(warmup.init, warmup.peak, warmup.steps));
  return 1;
}

using WarmupSchedule = Schedule (*)(double, double, double, int64_t, int64_t);

template <WarmupSchedule make>
int warmup_schedule(lua_State* L) {
  NamedArguments args(
      L, 1,
      make == linear_schedule ? "redco.optim.linear_schedule" : "redco.optim.cosine_schedule");
  Warmup warmup(args);
  auto end = args.get<double>("end_value", 0);
  auto total = args.required<int64_t>("total_steps");
  args.finish();
  push_schedule(L, make(warmup.init, warmup.peak, end, warmup.steps, total));
  return 1;
}

int lua_polynomial(lua_State* L) {
  NamedArguments args(L, 1, "redco.optim.polynomial_schedule");
  Warmup warmup(args);
  auto end = args.get<double>("end_value", 0);
  auto power = args.get<double>("power", 1);
  auto total = args.required<int64_t>("total_steps");
  args.finish();
  push_schedule(L, polynomial_schedule(warmup.init, warmup.peak, end, power, warmup.steps, total));
  return 1;
}

int lua_exponential(lua_State* L) {
  NamedArguments args(L, 1, "redco.optim.exponential_schedule");
  Warmup warmup(args);
  auto end = args.get<double>("end_value", 0);
  auto decay_rate = args.required<double>("decay_rate");
  auto decay_steps = args.get<int64_t>("decay_steps", 1);
  auto staircase = args.get<bool>("staircase", false);
  args.finish();
  push_schedule(L, exponential_schedule(warmup.init, warmup.peak, end, decay_rate, decay_steps,
                                        staircase, warmup.steps));
  return 1;
}

int lua_one_cycle(lua_State* L) {
  NamedArguments args(L, 1, "redco.optim.one_cycle_schedule");
  auto peak = args.required<double>("peak_value");
  auto total = args.required<int64_t>("total_steps");
  auto pct_start = args.get<double>("pct_start", 0.3);
  auto div_factor = args.get<double>("div_factor", 25);
  auto final_div_factor = args.get<double>("final_div_factor", 1e4);
  auto strategy = args.get<std::string>("anneal_strategy", "cos");
  require(strategy == "cos" || strategy == "linear", args.function(), ": anneal_strategy = \"",
          strategy, "\" is not one of \"cos\" and \"linear\"");
  args.finish();
  push_schedule(L, one_cycle_schedule(peak, total, pct_start, div_factor, final_div_factor,
                                      strategy == "linear"));
  return 1;
}

int lua_wsd(lua_State* L) {
  NamedArguments args(L, 1, "redco.optim.wsd_schedule");
  Warmup warmup(args);
  auto end = args.get<double>("end_value", 0);
  auto decay_steps = args.required<int64_t>("decay_steps");
  auto total = args.required<int64_t>("total_steps");
  auto decay = args.get<std::string>("decay", "linear");
  args.finish();
  push_schedule(
      L, wsd_schedule(warmup.init, warmup.peak, end, warmup.steps, decay_steps, total, decay));
  return 1;
}

int lua_piecewise(lua_State* L) {
  NamedArguments args(L, 1, "redco.optim.piecewise_schedule");
  std::vector<Schedule> pieces;
  std::vector<int64_t> boundaries;
  const std::string values = args.function() + ": values",
                    bounds = args.function() + ": boundaries";
  args.push_required("values");
  int list = lua_gettop(L);
  require(lua_istable(L, list), values, ": expected a list, got ", described(L, list));
  for (int i = 1; i <= int(lua_objlen(L, list)); ++i) {
    lua_rawgeti(L, list, i);
    pieces.push_back(check_schedule(L, lua_gettop(L), values + ": entry " + std::to_string(i)));
    lua_pop(L, 1);
  }
  args.push_required("boundaries");
  list = lua_gettop(L);
  require(lua_istable(L, list), bounds, ": expected a list, got ", described(L, list));
  for (int i = 1; i <= int(lua_objlen(L, list)); ++i) {
    lua_rawgeti(L, list, i);
    boundaries.push_back(check_integer(L, -1, bounds.c_str()));
    lua_pop(L, 1);
  }
  args.finish();
  push_schedule(L, piecewise_schedule(std::move(pieces), std::move(boundaries)));
  return 1;
}

int lua_on_plateau(lua_State* L) {
  NamedArguments args(L, 1, "redco.optim.on_plateau");
  PlateauOptions options;
  options.value = args.required<double>("value");
  options.metric = args.get<std::string>("metric", options.metric);
  auto mode = args.get<std::string>("mode", "min");
  require(mode == "min" || mode == "max", args.function(), ": mode = \"", mode,
          "\" is not one of \"min\" and \"max\"");
  options.maximize = mode == "max";
  options.factor = args.get<double>("factor", options.factor);
  options.patience = args.get<int64_t>("patience", options.patience);
  options.threshold = args.get<double>("threshold", options.threshold);
  auto threshold_mode = args.get<std::string>("threshold_mode", "rel");
  require(threshold_mode == "rel" || threshold_mode == "abs", args.function(),
          ": threshold_mode = \"", threshold_mode, "\" is not one of \"rel\" and \"abs\"");
  options.is_absolute = threshold_mode == "abs";
  options.cooldown = args.get<int64_t>("cooldown", options.cooldown);
  options.min_value = args.get<double>("min_value", options.min_value);
  options.eps = args.get<double>("eps", options.eps);
  args.finish();
  push_object(L, std::make_shared<LuaSchedule>(LuaSchedule{on_plateau(std::move(options))}));
  return 1;
}

}  // namespace

void push_schedule(lua_State* L, Schedule schedule) {
  push_object(L, std::make_shared<LuaSchedule>(LuaSchedule{std::move(schedule)}));
  lua_pushcclosure(L, call_schedule, 1);
}

Schedule check_schedule_argument(NamedArguments& args, const char* name) {
  return balanced(args.state(), [&]() -> Schedule {
    args.push(name);
    if (lua_isnil(args.state(), -1)) return {};
    return check_schedule(args.state(), lua_gettop(args.state()), args.function() + ": " + name);
  });
}

void add_schedules(lua_State* L) {
  make_object_type<LuaSchedule>(
      L,
      "Schedule {}\n"
      "A learning rate that follows a metric; see `redco.optim.on_plateau`.",
      {});
  register_functions(
      L, "redco.optim.",
      {{"constant_schedule", lua_constant,
        "constant_schedule{init_value = 0, peak_value, warmup_steps = 0} -> function(step) -> "
        "number\n"
        "Rises linearly from init_value to peak_value at warmup_steps, and stays there. Without a "
        "warm-up a number is enough as learning_rate."},
       {"linear_schedule", warmup_schedule<linear_schedule>,
        "linear_schedule{init_value = 0, peak_value, end_value = 0, warmup_steps = 0, "
        "total_steps} -> function(step) -> number\n"
        "Rises linearly from init_value to peak_value at warmup_steps, then falls linearly to "
        "end_value at total_steps."},
       {"cosine_schedule", warmup_schedule<cosine_schedule>,
        "cosine_schedule{init_value = 0, peak_value, end_value = 0, warmup_steps = 0, "
        "total_steps} -> function(step) -> number\n"
        "Rises linearly from init_value to peak_value at warmup_steps, then falls along half a "
        "cosine to end_value at total_steps."},
       {"polynomial_schedule", lua_polynomial,
        "polynomial_schedule{init_value = 0, peak_value, end_value = 0, power = 1, warmup_steps = "
        "0, total_steps} -> function(step) -> number\n"
        "Rises linearly from init_value to peak_value at warmup_steps, then falls as (1 - "
        "t)^power to end_value at total_steps."},
       {"exponential_schedule", lua_exponential,
        "exponential_schedule{init_value = 0, peak_value, end_value = 0, decay_rate: number, "
        "decay_steps = 1, staircase = false, warmup_steps = 0} -> function(step) -> number\n"
        "Rises linearly from init_value to peak_value at warmup_steps, then is multiplied by "
        "decay_rate in every decay_steps steps, at their end with `staircase`. It does not fall "
        "below end_value."},
       {"one_cycle_schedule", lua_one_cycle,
        "one_cycle_schedule{peak_value, total_steps, pct_start = 0.3, div_factor = 25, "
        "final_div_factor = 1e4, anneal_strategy = \"cos\"} -> function(step) -> number\n"
        "As torch.optim.lr_scheduler.OneCycleLR: rises from peak_value / div_factor to peak_value "
        "in the part pct_start of the steps, then falls to peak_value / div_factor / "
        "final_div_factor, along half a cosine or, with \"linear\", a line."},
       {"wsd_schedule", lua_wsd,
        "wsd_schedule{init_value = 0, peak_value, end_value = 0, warmup_steps = 0, decay_steps: "
        "integer, total_steps, decay = \"linear\"} -> function(step) -> number\n"
        "Warm-up, stable, decay: rises linearly to peak_value at warmup_steps, stays there, and "
        "falls to end_value in the last decay_steps of total_steps: \"linear\", \"cosine\" or "
        "\"sqrt\", as 1 - sqrt(t)."},
       {"piecewise_schedule", lua_piecewise,
        "piecewise_schedule{values: list, boundaries: list of integers} -> "
        "function(step) -> number\n"
        "Has values[1] before the step boundaries[1], then values[2] before boundaries[2], and so "
        "on; there is one value more than boundaries. A value may be a schedule, whose steps count "
        "from its boundary."},
       {"on_plateau", lua_on_plateau,
        "on_plateau{value: number, metric = \"loss\", mode = \"min\", factor = 0.1, patience = 10, "
        "threshold = 1e-4, threshold_mode = \"rel\", cooldown = 0, min_value = 0, eps = 1e-8} -> "
        "Schedule\n"
        "A learning rate for an optimizer that starts as `value` and is multiplied by `factor` "
        "after more than `patience` evaluations without an improvement of `metric`, as "
        "torch.optim.lr_scheduler.ReduceLROnPlateau. Trainer:fit passes on the metrics of its "
        "evaluations; in another loop call `Optimizer:observe`. Its state is in the "
        "optimizer state.\n"
        "  mode: whether the lowest (\"min\") or the highest (\"max\") value is the best\n"
        "  threshold: how much better a value must be, relative to the best one or, with "
        "threshold_mode = \"abs\", absolutely\n"
        "  cooldown: evaluations after a reduction that do not count"}});
}

}  // namespace redco::lua
