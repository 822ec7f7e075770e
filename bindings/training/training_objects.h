// The Lua objects Deployer, Trainer and Predictor.

#pragma once

#include "callbacks.h"
#include "state/context.h"

#include <redco/deployer.h>
#include <redco/predictor.h>
#include <redco/trainer.h>

#include <lua.hpp>
#include <map>
#include <memory>
#include <string>

namespace redco::lua {

struct LuaDeployer {
  static constexpr const char* lua_name = "Deployer";
  std::shared_ptr<Deployer> deployer;
  int64_t seed = 0;

  std::string described() const;
};

struct LuaTrainer {
  static constexpr const char* lua_name = "Trainer";
  std::shared_ptr<Trainer> trainer;
  Collator collator;
  Collate collate;
  Ref apply_fn;                                   // empty when none was given
  Ref custom_state;                               // a table; empty when none was given
  Ref given;                                      // of a checked script: the arguments, a table
  std::shared_ptr<const TrainerOptions> options;  // without params and opt_state

  std::string described() const { return "step = " + std::to_string(trainer->step()); }
};

struct LuaPredictor {
  static constexpr const char* lua_name = "Predictor";
  Predictor predictor;
  Collator collator;
};

// The parts of this folder in a Lua state.
void add_deployer(lua_State* L);
void add_trainer(lua_State* L);
void add_predictor(lua_State* L);
void add_micro_batches(lua_State* L);
void add_calls(lua_State* L);

/// Reads the hooks of Trainer:fit; `add_hooks` prepares a state for them.
void read_hooks(NamedArguments& args, const std::shared_ptr<LuaTrainer>& trainer,
                FitOptions& options);
void add_hooks(lua_State* L);

/// Trainer:fit and its text.
int fit(lua_State* L);
extern const char* const fit_text;

/// Reads metrics from a table of numbers, or of tensors with one element.
std::map<std::string, double> check_metrics(lua_State* L, int index, const std::string& what);

/// Pushes a Predictor whose functions are `pred_fn` and, unless empty, `output_fn`.
void push_predictor(lua_State* L, const Collator& collator, const Ref& pred_fn,
                    const Ref& output_fn, PredictorOptions options);

}  // namespace redco::lua
