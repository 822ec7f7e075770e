#pragma once

#include <redco/engine.h>
#include <redco/error.h>
#include <redco/stop.h>
#include <redco/tree.h>

#include <ATen/core/Generator.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <lua.hpp>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <typeindex>

namespace redco {
class Console;
class Mesh;
}  // namespace redco

namespace redco::lua {

class RunRecord;
class TensorMemory;

/// What the bindings keep for one Lua state, from its making until after its end.
struct Context : std::enable_shared_from_this<Context> {
  /// The thread of Lua code that runs now: callbacks from C++ run on it.
  lua_State* current = nullptr;
  /// How many functions of C and C++ run, each called by the Lua code that the one before called.
  int depth = 0;
  /// Where training runs of this state report; may be null.
  std::shared_ptr<Console> console;
  /// The processes of the newest Deployer: those a script's tensors are laid out over.
  std::weak_ptr<const Mesh> mesh;
  /// What redco.options last resolved: checkpoints keep it.
  Tree config = Tree::Dict{};
  bool is_strict = false;
  /// Whether the state is that of a worker: what asks a run to stop is for the main thread alone.
  bool is_worker = false;
  /// Whether scripts see what restricted.lua lists, and no more.
  bool is_restricted = false;
  /// What ends a training run of this state alone.
  std::shared_ptr<StopRequest> stop = std::make_shared<StopRequest>();
  /// Instructions of Lua: how many a run may take, and how many are left of it. No limit is 0.
  struct {
    int64_t limit = 0;
    int64_t left = 0;
  } steps;
  /// Of a restricted engine: what its tensors take, and where its random numbers come from. See
  /// Confinement.
  std::shared_ptr<TensorMemory> tensor_memory;
  at::Generator rng;
  /// The classes of the program that are types of this state, and their names there.
  std::map<std::type_index, std::string> host_types;
  /// Null unless EngineOptions ask for it.
  std::shared_ptr<RunRecord> record;
  /// Set by Engine::interrupt, on any thread; cleared when it ends what runs.
  std::atomic<bool> interrupted = false;
  /// Which thread runs the engine, or did last.
  std::atomic<std::thread::id> thread;
  /// Bytes of tensors made since the collector last worked for them; see collector.h.
  struct {
    int64_t cpu = 0;
    int64_t gpu = 0;
    int64_t gpu_uncollected = 0;  ///< since collect_before_backward last collected
  } tensor_debt;
  /// What is known of the newest error beyond its message: errors stay plain strings for Lua, so
  /// that `pcall` and string functions work on them.
  struct {
    std::string message;
    std::string traceback;
    ScriptError::Kind kind = ScriptError::Kind::script;
    int signal = 0;
  } error;
};

/// Keys of the registry slots the bindings use: none that luaL_ref hands out, nor LUA_REFNIL.
enum RegistrySlot : int {
  slot_context = -10,
  slot_tensor_metatable = -11,
  slot_generator_metatable = -12,
  slot_texts = -13,
  slot_new_int64 = -14,
  slot_kind_of_cdata = -15,
  slot_size_metatable = -16,
  slot_own_globals = -17,
};

/// Makes the context of a new state, which must live as long as the state, and installs the wrapper
/// that every C function of the state is called through: C++ exceptions become Lua errors with
/// their text, script file and line, and a requested interrupt is honoured.
std::shared_ptr<Context> open_context(lua_State* L);

Context& context(lua_State* L);

/// The same for a state that others made and will close; once for each.
void open_context_of_others(lua_State* L, std::shared_ptr<Console> console);

/// The message of an error; LibTorch's without its C++ stack unless REDCO_TRACE is set.
std::string text_of(const std::exception& error);

/// The line of the script that called the running function: "train.lua:12", or "" where no Lua code
/// runs. A tail call leaves no line of its own: then it is the next one below. Lines of this
/// library's own Lua files ("=redco/...") tell the user nothing: they count only where there is no
/// other.
std::string script_line(lua_State* L);

/// A debug hook that ends the running Lua code as interrupted.
void interrupt_hook(lua_State* L, lua_Debug* frame);

/// From now on a run may take this many steps; 0: any number.
void limit_steps(lua_State* L, int64_t limit);

/// A run begins: all steps are left again.
void start_counting_steps(lua_State* L);

/// The time until now, spent in a function of the program, takes no steps.
void restart_step_clock();

/// A function for Lua that takes a hundred of the steps that are left.
int take_steps(lua_State* L);

/// Takes some of the steps that are left, for C++: throws where none are, or where the script was
/// interrupted.
void take_steps(Context& context, int64_t steps);

/// The same for steps that were made: what comes next is ended.
void note_steps(Context& context, int64_t steps);

/// Calls the function below its `n_args` arguments on the stack. A Lua error becomes a
/// ScriptError.
void call(lua_State* L, int n_args, int n_results);

/// Turns the error value on top of the stack into a ScriptError and pops it.
ScriptError take_error(lua_State* L);

/// Calls `body(L)` with an empty stack of its own, on the thread that runs the state `main` from
/// now on. Every error is a ScriptError, those too that Lua's interface itself raises when memory
/// runs out.
template <class Body>
void protect(lua_State* main, Body body) {
  Context& ctx = context(main);
  ctx.thread = std::this_thread::get_id();
  lua_State* L = ctx.current;  // a coroutine, where a host function calls back
  auto run = [](lua_State* state) {
    Body& given = *static_cast<Body*>(lua_touserdata(state, 1));
    lua_settop(state, 0);
    given(state);
    return 0;
  };
  int status = lua_cpcall(L, run, &body);
  ctx.current = L;
  if (status != 0) throw take_error(L);
}

/// A Lua value held by C++: copies share it, and it is released with the last copy or the state.
class Ref {
 public:
  Ref() = default;
  /// Takes the value at `index`, which stays on the stack.
  Ref(lua_State* L, int index);
  explicit operator bool() const { return slot_ != nullptr; }
  /// The thread of Lua code that runs now in this value's state.
  lua_State* state() const;
  /// Pushes the value on `state()`.
  void push() const;

 private:
  struct Slot;
  std::shared_ptr<Slot> slot_;
};

/// What `body` returns, with the stack of `L` as high after it as before. Where an error passes the
/// stack stays as it is: the error of Lua's own that may be passing is its topmost value.
template <class Body>
auto balanced(lua_State* L, Body body) {
  int top = lua_gettop(L);
  if constexpr (std::is_void_v<decltype(body())>) {
    body();
    lua_settop(L, top);
  } else {
    auto result = body();
    lua_settop(L, top);
    return result;
  }
}

}  // namespace redco::lua
