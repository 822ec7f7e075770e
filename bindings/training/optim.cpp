// redco.optim: the engine's optimizers and schedules.
#include "optim.h"

#include "state/arguments.h"
#include "state/object.h"
#include "state/registry.h"
#include "state/values.h"
#include "torch/tensor.h"

#include <redco/error.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

namespace redco::lua {

namespace {

// A number, or a function of the step.
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

Schedule learning_rate(NamedArguments& args) {
  lua_State* L = args.state();
  return balanced(L, [&] {
    args.push_required("learning_rate");
    return check_schedule(L, lua_gettop(L), args.function() + ": learning_rate");
  });
}

DecayMask mask(NamedArguments& args) {
  auto function = args.optional<Ref>("mask");
  if (!function) return {};
  return [function = *function](const std::string& name, const at::Tensor& param) {
    lua_State* L = function.state();
    return balanced(L, [&] {
      function.push();
      lua_pushlstring(L, name.data(), name.size());
      push_tensor(L, param);
      call(L, 2, 1);
      return lua_toboolean(L, -1) != 0;
    });
  };
}

// Reads the options of an optimizer from its arguments.
struct Reader {
  NamedArguments& args;

  template <class T>
  void operator()(const char* name, T& value) {
    value = args.get<T>(name, value);
  }
  void operator()(const char* name, std::optional<double>& value) {
    value = args.optional<double>(name);
  }
  void operator()(const char* name, std::array<double, 2>& values) {
    auto given = args.optional<Tree>(name);
    if (!given) return;
    require(given->is<Tree::List>() && given->as<Tree::List>().size() == 2, args.function(), ": ",
            name, ": expected a list of two numbers");
    for (size_t i = 0; i < 2; ++i) {
      const Tree& value = given->as<Tree::List>()[i];
      require(value.is<int64_t>() || value.is<double>(), args.function(), ": ", name,
              ": expected a list of two numbers, entry ", i + 1, " is a ", value.kind());
      values[i] = value.is<int64_t>() ? double(value.as<int64_t>()) : value.as<double>();
    }
  }
};

// Writes the options of an optimizer, with their defaults, as a signature shows them.
struct Signature {
  std::string text;

  void operator()(const char* name, const std::optional<double>&) {
    text += ", " + std::string(name) + " = nil";
  }
  void operator()(const char* name, bool value) { add(name, value ? "true" : "false"); }
  void operator()(const char* name, double value) { add(name, number(value)); }
  void operator()(const char* name, const std::array<double, 2>& values) {
    add(name, "{" + number(values[0]) + ", " + number(values[1]) + "}");
  }

 protected:
  void add(const char* name, const std::string& value) {
    text += ", " + std::string(name) + " = " + value;
  }

  static std::string number(double value) {
    char digits[32];
    std::snprintf(digits, sizeof digits, value != 0 && std::abs(value) < 1e-4 ? "%.0e" : "%g",
                  value);
    std::string text = digits;
    size_t zero = text.find("e-0");
    return zero == std::string::npos ? text : text.erase(zero + 2, 1);
  }
};

// Writes the options of an optimizer with their values.
struct State : Signature {
  using Signature::operator();
  void operator()(const char* name, const std::optional<double>& value) {
    if (value) add(name, number(*value));
  }
};

// `text` describes the optimizer: "adamw, learning_rate = 0.001".
int push_optimizer(lua_State* L, std::shared_ptr<Optimizer> optimizer, std::string text) {
  push_object(L,
              std::make_shared<LuaOptimizer>(LuaOptimizer{std::move(optimizer), std::move(text)}));
  return 1;
}

// "0.001", or "a schedule" for a function.
std::string learning_rate_text(NamedArguments& args) {
  lua_State* L = args.state();
  return balanced(L, [&]() -> std::string {
    args.push("learning_rate");
    return lua_type(L, -1) == LUA_TNUMBER ? lua_tostring(L, -1) : "a schedule";
  });
}

// A name as a template argument.
struct Name {
  char text[32] = {};
  constexpr Name(const char* name) {
    for (size_t i = 0; name[i] != 0; ++i) text[i] = name[i];
  }
};

template <Name name, class Options>
int make_optimizer(lua_State* L, std::shared_ptr<Optimizer> (*make)(Options)) {
  NamedArguments args(L, 1, std::string("redco.optim.") + name.text);
  Options options;
  options.learning_rate = learning_rate(args);
  Options::visit(options, Reader{args});
  options.weight_decay = args.get<double>("weight_decay", options.weight_decay);
  options.mask = mask(args);
  args.finish();
  State own;
  Options::visit(options, own);
  own("weight_decay", options.weight_decay);
  std::string text = name.text + (", learning_rate = " + learning_rate_text(args)) + own.text;
  return push_optimizer(L, make(std::move(options)), std::move(text));
}

template <class Options>
std::string signature(const char* name, std::shared_ptr<Optimizer> (*)(Options)) {
  const Options defaults;
  Signature own;
  Options::visit(defaults, own);
  own("weight_decay", defaults.weight_decay);
  return name + ("{learning_rate" + own.text) + ", mask: function = nil} -> Optimizer\n";
}

// The Lua function of an optimizer that updates parameters; `text` describes it.
template <Name name, auto make>
Function optimizer(const char* text) {
  static const std::string whole = signature(name.text, make) + text;
  return {name.text, [](lua_State* L) { return make_optimizer<name>(L, make); }, whole.c_str()};
}

int lua_chain(lua_State* L) {
  require(lua_istable(L, 1), "redco.optim.chain: expected a list of optimizers, got ",
          described(L, 1));
  std::vector<std::shared_ptr<Optimizer>> optimizers;
  std::string text = "chain";
  for (int i = 1; i <= int(lua_objlen(L, 1)); ++i) {
    lua_rawgeti(L, 1, i);
    auto entry = check_object<LuaOptimizer>(L, lua_gettop(L),
                                            "redco.optim.chain: entry " + std::to_string(i));
    optimizers.push_back(entry->optimizer);
    text += ", {" + entry->text + "}";
    lua_pop(L, 1);
  }
  return push_optimizer(L, chain(std::move(optimizers)), text);
}

int lua_clip(lua_State* L) {
  require(lua_type(L, 1) == LUA_TNUMBER, "redco.optim.clip_by_global_norm: expected a number, got ",
          described(L, 1));
  std::string text = "clip_by_global_norm, " + std::string(lua_tostring(L, 1));
  return push_optimizer(L, clip_by_global_norm(lua_tonumber(L, 1)), text);
}

int lua_freeze(lua_State* L) {
  auto inner = check_object<LuaOptimizer>(L, 1, "redco.optim.freeze: optimizer");
  require(lua_isfunction(L, 2),
          "redco.optim.freeze: expected a function of a parameter's name, got ", described(L, 2));
  auto frozen = freeze(inner->optimizer, [function = Ref(L, 2)](const std::string& name) {
    lua_State* state = function.state();
    return balanced(state, [&] {
      function.push();
      lua_pushlstring(state, name.data(), name.size());
      call(state, 1, 1);
      return lua_toboolean(state, -1) != 0;
    });
  });
  return push_optimizer(L, std::move(frozen), "freeze, {" + inner->text + "}");
}

int call_schedule(lua_State* L) {
  auto schedule = check_object<LuaSchedule>(L, lua_upvalueindex(1), "schedule");
  lua_pushnumber(L, schedule->schedule(check_integer(L, 1, "schedule: step")));
  return 1;
}

using WarmupSchedule = Schedule (*)(double, double, double, int64_t, int64_t);

template <WarmupSchedule make>
int warmup_schedule(lua_State* L) {
  NamedArguments args(
      L, 1,
      make == linear_schedule ? "redco.optim.linear_schedule" : "redco.optim.cosine_schedule");
  double init = args.get<double>("init_value", 0);
  double peak = args.required<double>("peak_value");
  double end = args.get<double>("end_value", 0);
  int64_t warmup = args.get<int64_t>("warmup_steps", 0);
  int64_t total = args.required<int64_t>("total_steps");
  args.finish();
  push_schedule(L, make(init, peak, end, warmup, total));
  return 1;
}

}  // namespace

void push_schedule(lua_State* L, Schedule schedule) {
  push_object(L, std::make_shared<LuaSchedule>(LuaSchedule{std::move(schedule)}));
  lua_pushcclosure(L, call_schedule, 1);
}

std::shared_ptr<Optimizer> check_optimizer(NamedArguments& args, const char* name) {
  return balanced(args.state(), [&] {
    args.push_required(name);
    return check_object<LuaOptimizer>(args.state(), lua_gettop(args.state()),
                                      args.function() + ": " + name)
        ->optimizer;
  });
}

Schedule check_schedule_argument(NamedArguments& args, const char* name) {
  return balanced(args.state(), [&]() -> Schedule {
    args.push(name);
    if (lua_isnil(args.state(), -1)) return {};
    return check_schedule(args.state(), lua_gettop(args.state()), args.function() + ": " + name);
  });
}

int open_optim(lua_State* L) {
  make_object_type<LuaOptimizer>(L,
                                 "Optimizer {}\n"
                                 "Turns gradients into updates of parameters, for a Trainer.",
                                 {});
  make_object_type<LuaSchedule>(
      L,
      "Schedule {}\n"
      "A function of the step that returns a number, such as the learning rate.",
      {});
  lua_newtable(L);
  register_value(
      L, "redco.optim",
      "redco.optim\n"
      "Optimizers and learning rate schedules. Optimizers have the names and defaults of "
      "torch.optim; `chain` combines them as in Optax.");
  register_functions(
      L, "redco.optim.",
      {optimizer<"adamw", adamw>(
           "Adam with decoupled weight decay (arXiv 1711.05101). `learning_rate` is a number or a "
           "function of the step. `mask(name, param)` returns whether a parameter decays; by "
           "default all do."),
       optimizer<"adam", adam>("Adam (arXiv 1412.6980). Weight decay is added to the gradient, as "
                               "in torch.optim.Adam."),
       optimizer<"sgd", sgd>("Stochastic gradient descent, as torch.optim.SGD."),
       optimizer<"lion", lion>("Lion (arXiv 2302.06675): updates by the sign of the momentum."),
       optimizer<"adafactor", adafactor>(
           "Adafactor (arXiv 1804.04235), as torch.optim.Adafactor: factored second moments, no "
           "first moment."),
       {"chain", lua_chain,
        "chain{first: Optimizer, second, ...} -> Optimizer\n"
        "Applies optimizers in order: any number that change gradients, then one that updates "
        "parameters."},
       {"clip_by_global_norm", lua_clip,
        "clip_by_global_norm(max_norm) -> Optimizer\n"
        "Scales all gradients by max_norm / norm if their global 2-norm exceeds max_norm. For "
        "`chain`."},
       {"freeze", lua_freeze,
        "freeze(optimizer, frozen) -> Optimizer\n"
        "Returns the optimizer without the parameters for which frozen(name) is true: these get "
        "no gradient, no optimizer state and no update. `name` is the dotted path in the params "
        "tree."},
       {"linear_schedule", warmup_schedule<linear_schedule>,
        "linear_schedule{init_value = 0, peak_value, end_value = 0, warmup_steps = 0, "
        "total_steps} -> function(step) -> number\n"
        "Rises linearly from init_value to peak_value at warmup_steps, then falls linearly to "
        "end_value at total_steps."},
       {"cosine_schedule", warmup_schedule<cosine_schedule>,
        "cosine_schedule{init_value = 0, peak_value, end_value = 0, warmup_steps = 0, "
        "total_steps} -> function(step) -> number\n"
        "Rises linearly from init_value to peak_value at warmup_steps, then falls along half a "
        "cosine to end_value at total_steps."}});
  return 1;
}

}  // namespace redco::lua
