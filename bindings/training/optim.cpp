// redco.optim: the engine's optimizers and schedules.
#include "optim.h"

#include "state/arguments.h"
#include "state/object.h"
#include "state/registry.h"
#include "state/tensor.h"
#include "state/values.h"

#include <redco/detail/article.h>
#include <redco/error.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

namespace redco::lua {

namespace {

Schedule learning_rate(NamedArguments& args) {
  lua_State* L = args.state();
  return balanced(L, [&] {
    args.push_required("learning_rate");
    if (auto object = test_object<LuaSchedule>(L, lua_gettop(L))) return object->schedule;
    return check_schedule(L, lua_gettop(L), args.function() + ": learning_rate");
  });
}

// Reads a pattern of names, a list of them, or a function of a name and a parameter.
ParamFilter check_filter(lua_State* L, int index, const std::string& what) {
  if (lua_isfunction(L, index))
    return [function = Ref(L, index)](const std::string& name, const at::Tensor& param) {
      lua_State* state = function.state();
      return balanced(state, [&] {
        function.push();
        lua_pushlstring(state, name.data(), name.size());
        push_tensor(state, param);
        call(state, 2, 1);
        return lua_toboolean(state, -1) != 0;
      });
    };
  NamePatterns names;
  if (lua_type(L, index) == LUA_TSTRING) {
    names.patterns.emplace_back(lua_tostring(L, index));
    return names;
  }
  require(lua_istable(L, index) && lua_objlen(L, index) > 0, what,
          ": expected a pattern of names, a list of patterns, or a function of a name and a "
          "parameter, got ",
          described(L, index));
  for (int i = 1; i <= int(lua_objlen(L, index)); ++i) {
    lua_rawgeti(L, index, i);
    require(lua_type(L, -1) == LUA_TSTRING, what, ": entry ", i, " of the patterns is ",
            described(L, lua_gettop(L)));
    names.patterns.emplace_back(lua_tostring(L, -1));
    lua_pop(L, 1);
  }
  return names;
}

DecayMask mask(NamedArguments& args) {
  lua_State* L = args.state();
  return balanced(L, [&]() -> DecayMask {
    args.push("mask");
    if (lua_isnil(L, -1)) return {};
    return check_filter(L, lua_gettop(L), args.function() + ": mask");
  });
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
  template <size_t n>
  void operator()(const char* name, std::array<double, n>& values) {
    auto given = args.optional<Tree>(name);
    if (!given) return;
    const char* number = n == 2 ? "two" : "three";
    require(given->is<Tree::List>() && given->as<Tree::List>().size() == n, args.function(), ": ",
            name, ": expected a list of ", number, " numbers");
    for (size_t i = 0; i < n; ++i) {
      const Tree& value = given->as<Tree::List>()[i];
      require(value.is<int64_t>() || value.is<double>(), args.function(), ": ", name,
              ": expected a list of ", number, " numbers, entry ", i + 1, " is ",
              with_article(value.kind()));
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
  void operator()(const char* name, int64_t value) { add(name, std::to_string(value)); }
  void operator()(const char* name, const std::string& value) { add(name, "\"" + value + "\""); }
  template <size_t n>
  void operator()(const char* name, const std::array<double, n>& values) {
    std::string list;
    for (double value : values) list += (list.empty() ? "{" : ", ") + number(value);
    add(name, list + "}");
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
  require(lua_gettop(L) == 1 && lua_objlen(L, 1) == 0, args.function(),
          ": expected only a table of named arguments, such as { learning_rate = 1e-3 }; the "
          "parameters are given to redco.Trainer, or to Optimizer:init");
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
  return name + ("{learning_rate" + own.text) +
         ", mask: string or list of strings or function = nil} -> Optimizer\n";
}

// The Lua function of an optimizer that updates parameters; `text` describes it.
template <Name name, auto make>
Function optimizer(const char* text) {
  static const std::string whole = signature(name.text, make) + text;
  return {name.text, [](lua_State* L) { return make_optimizer<name>(L, make); }, whole.c_str()};
}

// `what` begins the error that says how an optimizer is made.
std::shared_ptr<LuaOptimizer> check_optimizer(lua_State* L, int index, const std::string& what) {
  auto optimizer = test_object<LuaOptimizer>(L, index);
  require(optimizer != nullptr, what,
          ": expected an Optimizer, such as redco.optim.adamw { learning_rate = 1e-3 }, got ",
          described(L, index));
  return optimizer;
}

int lua_chain(lua_State* L) {
  require(lua_istable(L, 1), "redco.optim.chain: expected a list of optimizers, got ",
          described(L, 1));
  std::vector<std::shared_ptr<Optimizer>> optimizers;
  std::string text = "chain";
  for (int i = 1; i <= int(lua_objlen(L, 1)); ++i) {
    lua_rawgeti(L, 1, i);
    auto entry = check_optimizer(L, lua_gettop(L), "redco.optim.chain: entry " + std::to_string(i));
    optimizers.push_back(entry->optimizer);
    text += ", {" + entry->text + "}";
    lua_pop(L, 1);
  }
  return push_optimizer(L, chain(std::move(optimizers)), text);
}

// A function of one number.
template <Name name, std::shared_ptr<Optimizer> (*make)(double)>
int clip(lua_State* L) {
  const std::string function = std::string("redco.optim.") + name.text;
  require(lua_type(L, 1) == LUA_TNUMBER, function, ": expected a number, got ", described(L, 1));
  std::string text = name.text + (", " + std::string(lua_tostring(L, 1)));
  return push_optimizer(L, make(lua_tonumber(L, 1)), std::move(text));
}

int lua_add_decayed_weights(lua_State* L) {
  NamedArguments args(L, 1, "redco.optim.add_decayed_weights");
  auto weight_decay = args.required<double>("weight_decay");
  DecayMask decays = mask(args);
  args.finish();
  State own;
  own("weight_decay", weight_decay);
  return push_optimizer(L, add_decayed_weights(weight_decay, std::move(decays)),
                        "add_decayed_weights" + own.text);
}

int lua_ema(lua_State* L) {
  NamedArguments args(L, 1, "redco.optim.ema");
  args.push_required("decay");
  Schedule decay = check_schedule(L, lua_gettop(L), args.function() + ": decay");
  auto every = args.get<int64_t>("every", 1);
  args.finish();
  State own;
  own("every", every);
  return push_optimizer(L, ema(std::move(decay), every), "ema" + own.text);
}

int lua_lookahead(lua_State* L) {
  NamedArguments args(L, 1, "redco.optim.lookahead");
  auto every = args.get<int64_t>("every", 5);
  auto alpha = args.get<double>("alpha", 0.5);
  args.finish();
  State own;
  own("every", every);
  own("alpha", alpha);
  return push_optimizer(L, lookahead(every, alpha), "lookahead" + own.text);
}

int lua_freeze(lua_State* L) {
  auto inner = check_optimizer(L, 1, "redco.optim.freeze: optimizer");
  ParamFilter frozen = check_filter(L, 2, "redco.optim.freeze: frozen");
  return push_optimizer(L, freeze(inner->optimizer, std::move(frozen)),
                        "freeze, {" + inner->text + "}");
}

int lua_multi(lua_State* L) {
  const std::string function = "redco.optim.multi";
  require(lua_istable(L, 1) && lua_objlen(L, 1) > 0, function,
          ": expected a list of {pattern, optimizer}, got ", described(L, 1));
  std::vector<OptimizerOf> entries;
  std::string text = "multi";
  for (int i = 1; i <= int(lua_objlen(L, 1)); ++i) {
    const std::string what = function + ": entry " + std::to_string(i);
    lua_rawgeti(L, 1, i);
    int entry = lua_gettop(L);
    require(lua_istable(L, entry) && lua_objlen(L, entry) == 2, what,
            ": expected {pattern, optimizer} or {pattern, \"frozen\"}, got ", described(L, entry));
    lua_rawgeti(L, entry, 1);
    lua_rawgeti(L, entry, 2);
    OptimizerOf own;
    own.selects = check_filter(L, entry + 1, what);
    const auto* names = own.selects.target<NamePatterns>();
    if (names == nullptr) own.label = "a function";
    for (size_t j = 0; names != nullptr && j < names->patterns.size(); ++j)
      own.label += (j == 0 ? "\"" : ", \"") + names->patterns[j] + "\"";
    std::string described_as = "frozen";
    bool is_frozen =
        lua_type(L, entry + 2) == LUA_TSTRING && lua_tostring(L, entry + 2) == described_as;
    if (!is_frozen) {
      auto optimizer = check_optimizer(L, entry + 2, what + ": optimizer");
      own.optimizer = optimizer->optimizer;
      described_as = optimizer->text;
    }
    text += ", {" + own.label + ": " + described_as + "}";
    entries.push_back(std::move(own));
    lua_settop(L, entry - 1);
  }
  return push_optimizer(L, multi(std::move(entries)), std::move(text));
}

}  // namespace

std::shared_ptr<Optimizer> check_optimizer(NamedArguments& args, const char* name) {
  return balanced(args.state(), [&] {
    args.push_required(name);
    return check_optimizer(args.state(), lua_gettop(args.state()), args.function() + ": " + name)
        ->optimizer;
  });
}

int open_optim(lua_State* L) {
  add_optimizer_type(L);
  lua_newtable(L);
  register_value(
      L, "redco.optim",
      "redco.optim\n"
      "Optimizers and learning rate schedules. Optimizers have the names and defaults of "
      "torch.optim; `chain` combines them as in Optax.");
  register_functions(
      L, "redco.optim.",
      {optimizer<"adamw", adamw>(
           "Adam with decoupled weight decay (arXiv 1711.05101). `learning_rate` is a number, a "
           "function of the step or `on_plateau`. `mask` says which parameters decay, by default "
           "all: a pattern of dotted names, which * makes match any text and which may leave out "
           "the first parts, a list of patterns, or mask(name, param)."),
       optimizer<"adam", adam>("Adam (arXiv 1412.6980). Weight decay is added to the gradient, as "
                               "in torch.optim.Adam."),
       optimizer<"adamw8bit", adamw8bit>(
           "adamw with moments of 8 bits, as bitsandbytes' AdamW8bit: 2 bytes of state for each "
           "number in place of 8. Blocks of 256 neighbours share a scale. The moments of "
           "parameters "
           "with fewer than min_8bit_size elements stay floats."),
       optimizer<"sgd", sgd>("Stochastic gradient descent, as torch.optim.SGD."),
       optimizer<"rmsprop", rmsprop>("RMSprop, as torch.optim.RMSprop."),
       optimizer<"adagrad", adagrad>("Adagrad, as torch.optim.Adagrad."),
       optimizer<"lion", lion>("Lion (arXiv 2302.06675): updates by the sign of the momentum."),
       optimizer<"lamb", lamb>(
           "LAMB (arXiv 1904.00962), as optax.lamb: Adam with decoupled weight decay, in which the "
           "norm of each parameter scales its update."),
       optimizer<"adafactor", adafactor>(
           "Adafactor (arXiv 1804.04235), as torch.optim.Adafactor: factored second moments, no "
           "first moment."),
       optimizer<"muon", muon>(
           "Muon, as torch.optim.Muon: makes the momentum of a matrix orthogonal. It updates "
           "matrices only: combine it by `multi` with another optimizer for embeddings, biases and "
           "norms. adjust_lr_fn = \"match_rms_adamw\" suits the learning rates of adamw."),
       {"chain", lua_chain,
        "chain{first: Optimizer, second, ...} -> Optimizer\n"
        "Applies optimizers in order: any number that change gradients, one that updates "
        "parameters, any number that work on the updated parameters (`ema`, `lookahead`)."},
       {"multi", lua_multi,
        "multi{first: table, second: table, ...} -> Optimizer\n"
        "Several optimizers on one tree. Each entry is {pattern, optimizer}, or {pattern, "
        "\"frozen\"} for parameters that are not trained; a parameter has the first entry that "
        "matches it. A pattern is one of dotted names, as for `mask`, a list of them, or a "
        "function(name, param). Raises an error for a parameter without an entry and for an entry "
        "without parameters. A step changes only the entries that got gradients. The log has "
        "the learning rates of the entries as lr, lr_2 and so on."},
       {"clip_by_global_norm", clip<"clip_by_global_norm", clip_by_global_norm>,
        "clip_by_global_norm(max_norm) -> Optimizer\n"
        "Scales all gradients by max_norm / norm if their global 2-norm exceeds max_norm. For "
        "`chain`."},
       {"clip_by_value", clip<"clip_by_value", clip_by_value>,
        "clip_by_value(max_value) -> Optimizer\n"
        "Limits each value of the gradients to the range from -max_value to max_value. For "
        "`chain`."},
       {"add_decayed_weights", lua_add_decayed_weights,
        "add_decayed_weights{weight_decay: number, mask: string or list of strings or function = "
        "nil} "
        "-> Optimizer\n"
        "Adds weight_decay times the parameter to each gradient (L2), for parameters that `mask` "
        "selects. For `chain`."},
       {"ema", lua_ema,
        "ema{decay: number or function, every = 1} -> Optimizer\n"
        "Keeps a moving average of the parameters, at the end of a `chain`. It starts with the "
        "initial parameters; at each `every`-th step it becomes decay * average + (1 - decay) * "
        "parameter. `decay` may be a function of the step. `Optimizer:averages` returns it. It is "
        "at least float32, and part of the optimizer state."},
       {"lookahead", lua_lookahead,
        "lookahead{every = 5, alpha = 0.5} -> Optimizer\n"
        "Lookahead (arXiv 1907.08610), at the end of a `chain`: every `every` steps, slow "
        "parameters move by `alpha` towards the parameters, which continue from there."},
       {"freeze", lua_freeze,
        "freeze(optimizer, frozen) -> Optimizer\n"
        "Returns the optimizer without the parameters that `frozen` selects: these get no "
        "gradient, no optimizer state and no update. `frozen` is a pattern of dotted names, a list "
        "of them, or frozen(name, param)."}});
  add_schedules(L);
  return 1;
}

}  // namespace redco::lua
