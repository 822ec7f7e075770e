// The hooks of Trainer:fit.

#include "optim.h"
#include "state/arguments.h"
#include "state/object.h"
#include "state/values.h"
#include "training_objects.h"

#include <redco/error.h>

#include <c10/util/ScopeExit.h>

#include <memory>
#include <string>
#include <utility>

namespace redco::lua {

namespace {

// The engine's event while the hook runs, null afterwards: a script may keep its table.
struct LuaFitEvent {
  static constexpr const char* lua_name = "FitEvent";
  const FitEvent* event = nullptr;
  std::string hook;
};

const FitEvent& current(lua_State* L, const char* what) {
  auto object = check_object<LuaFitEvent>(L, lua_upvalueindex(1), "event");
  require(object->event != nullptr, object->hook, ": event.", what,
          " is for use inside the hook: keep its value instead of the event");
  return *object->event;
}

void push_numbers(lua_State* L, const Metrics& metrics) {
  lua_createtable(L, 0, int(metrics.size()));
  for (const auto& [name, value] : metrics) {
    lua_pushnumber(L, value);
    lua_setfield(L, -2, name.c_str());
  }
}

// __index of the event's table: metrics are read when a script asks for them.
int index(lua_State* L) {
  if (lua_type(L, 2) != LUA_TSTRING || std::string(lua_tostring(L, 2)) != "metrics") return 0;
  push_numbers(L, current(L, "metrics").metrics());
  lua_pushvalue(L, 2);
  lua_pushvalue(L, -2);
  lua_rawset(L, 1);
  return 1;
}

int stop(lua_State* L) {
  require(lua_isnoneornil(L, 1) || lua_type(L, 1) == LUA_TSTRING,
          "event.stop: expected a reason, got ", described(L, 1), "; it is called with a dot");
  current(L, "stop").stop(lua_isnoneornil(L, 1) ? "" : lua_tostring(L, 1));
  return 0;
}

void push_event(lua_State* L, const FitEvent& event, const std::shared_ptr<LuaFitEvent>& holder,
                const std::shared_ptr<LuaTrainer>& trainer) {
  lua_createtable(L, 0, 6);
  push_integer(L, event.step);
  lua_setfield(L, -2, "step");
  push_integer(L, event.epoch_idx);
  lua_setfield(L, -2, "epoch_idx");
  push_object(L, trainer);
  lua_setfield(L, -2, "trainer");
  if (!event.ckpt_names.empty()) {
    lua_createtable(L, int(event.ckpt_names.size()), 0);
    for (size_t i = 0; i < event.ckpt_names.size(); ++i) {
      lua_pushstring(L, event.ckpt_names[i].c_str());
      lua_rawseti(L, -2, int(i) + 1);
    }
    lua_setfield(L, -2, "ckpt_names");
  }
  push_object(L, holder);
  lua_pushcclosure(L, stop, 1);
  lua_setfield(L, -2, "stop");
  lua_createtable(L, 0, 1);
  push_object(L, holder);
  lua_pushcclosure(L, index, 1);
  lua_setfield(L, -2, "__index");
  lua_setmetatable(L, -2);
}

Hook check_hook(NamedArguments& args, const char* name,
                const std::shared_ptr<LuaTrainer>& trainer) {
  Ref function = args.get<Ref>(name, {});
  if (!function) return {};
  return [function, trainer, name = args.function() + ": " + name](const FitEvent& event) {
    lua_State* L = function.state();
    auto holder = std::make_shared<LuaFitEvent>(LuaFitEvent{&event, name});
    auto ended = c10::make_scope_exit([&] { holder->event = nullptr; });
    balanced(L, [&] {
      luaL_checkstack(L, 10, "a hook");
      function.push();
      push_event(L, event, holder, trainer);
      call(L, 1, 0);
    });
  };
}

}  // namespace

void read_hooks(NamedArguments& args, const std::shared_ptr<LuaTrainer>& trainer,
                FitOptions& options) {
  options.on_step = check_hook(args, "on_step", trainer);
  options.on_eval = check_hook(args, "on_eval", trainer);
  options.on_epoch = check_hook(args, "on_epoch", trainer);
  options.on_save = check_hook(args, "on_save", trainer);
}

void add_hooks(lua_State* L) {
  make_object_type<LuaFitEvent>(L, "FitEvent {}\nThe engine's side of a hook's event.", {});
}

}  // namespace redco::lua
