// The context of a Lua state: errors, tracebacks, interrupts, instruction counts and references.

#pragma once

#include <redco/error.h>
#include <redco/script_error.h>
#include <redco/stop.h>
#include <redco/tree.h>

#include <ATen/core/Generator.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <lua.hpp>
#include <map>
#include <memory>
#include <optional>
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

class ReportedRuns;
class TensorMemory;

/// The bindings' data of one Lua state, from its creation until after its end.
struct Context : std::enable_shared_from_this<Context> {
  /// The Lua thread that runs now. Callbacks from C++ run on it.
  lua_State* current = nullptr;
  /// The depth of nested C and C++ functions, each called by Lua code that the previous one called.
  int depth = 0;
  /// The console of training runs of this state; may be null.
  std::shared_ptr<Console> console;
  /// The mesh of the newest Deployer, over which a script's tensors are sharded. It is kept, since
  /// the collector frees a Deployer at a different time on each process.
  std::shared_ptr<const Mesh> mesh;
  /// The last result of redco.options, which checkpoints store.
  Tree config = Tree::Dict{};
  bool is_strict = false;
  bool exits_process = false;  ///< whether os.exit does
  /// Whether the state is that of a worker. Only the main thread handles requests to stop a run.
  bool is_worker = false;
  /// Whether scripts see only the globals that restricted.lua lists.
  bool is_restricted = false;
  /// Stop request for the training runs of this state only.
  std::shared_ptr<StopRequest> stop = std::make_shared<StopRequest>();
  /// The limit of Lua instructions of a run, and how many are left. 0 means no limit.
  struct {
    int64_t limit = 0;
    int64_t left = 0;
  } instructions;
  /// Of a restricted engine: the memory of its tensors, and its random generator. See Confinement.
  std::shared_ptr<TensorMemory> tensor_memory;
  at::Generator rng;
  /// The classes of the program registered in this state, and their names.
  std::map<std::type_index, std::string> host_types;
  /// Null unless ScriptEngineOptions ask for it.
  std::shared_ptr<ReportedRuns> reported_runs;
  /// Set by os.exit until the running call has ended.
  std::optional<ScriptError> exited;
  /// Set by ScriptEngine::interrupt, on any thread; cleared once the running call has ended.
  std::atomic<bool> interrupted = false;
  /// The thread that runs the engine, or the last one that did.
  std::atomic<std::thread::id> thread;
  /// Bytes of tensors created since the collector last advanced for them; see collector.h.
  struct TensorDebt {
    int64_t cpu_new = 0;  ///< added to `cpu` when it is a megabyte
    int64_t cpu = 0;
    std::chrono::steady_clock::time_point cpu_pause_end;  ///< before it, a little debt can wait
    int64_t gpu = 0;                                      ///< since all garbage was collected
    int64_t gpu_seen = 0;      ///< its value when a collection was last put off
    int64_t gpu_of_batch = 0;  ///< since the last batch began
    std::chrono::steady_clock::time_point gpu_pause_end;  ///< before it, debt may wait
    /// The bytes that all tensors are counted for, in place of the current GPU's: of a plan.
    struct Gpu {
      std::function<int64_t()> size, in_use;
    };
    std::optional<Gpu> planned_gpu;
  } tensor_debt;
  /// Further data of the newest error. Errors stay plain strings for Lua, so `pcall` and string
  /// functions work on them.
  struct {
    std::string message;
    std::string traceback;
    ScriptError::Kind kind = ScriptError::Kind::script;
    int number = 0;
  } error;
};

/// Keys of the bindings' registry slots: negative numbers that luaL_ref never returns, other than
/// LUA_REFNIL.
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

/// Creates the context of a new state; it must live as long as the state. Installs the wrapper
/// through which every C function of the state is called: it turns C++ exceptions into Lua errors
/// with their text, script file and line, and handles interrupts.
std::shared_ptr<Context> open_context(lua_State* L);

Context& context(lua_State* L);

/// The same for a state that the program created and will close. Call it once per state.
void open_context_of_others(lua_State* L, std::shared_ptr<Console> console);

/// Returns the message of an error. LibTorch's C++ stack is left out unless REDCO_TRACE is set.
std::string text_of(const std::exception& error);

/// Returns the script line that called the running function, "train.lua:12", or "" if there is
/// none. A tail call leaves no line; then it is the next one below. Lines of this library's Lua
/// files ("=redco/...") are skipped, because they do not help the user.
std::string script_line(lua_State* L);

/// os.exit(code = 0) where it does not end the process: ends the running script.
int end_script(lua_State* L);

/// A debug hook that ends the running Lua code as interrupted.
void interrupt_hook(lua_State* L, lua_Debug* frame);

/// Limits the instructions of later runs; 0: no limit.
void limit_instructions(lua_State* L, int64_t limit);

/// Resets the remaining instructions at the start of a run.
void start_counting_instructions(lua_State* L);

/// The processor time of this thread, in microseconds.
int64_t processor_time();

/// Excludes the time until now from the step count: it was spent in a function of the program.
void restart_step_clock();

/// A Lua function that subtracts a hundred from the remaining instructions.
int take_instructions(lua_State* L);

/// Subtracts from the remaining instructions, for C++: `instructions`, or in a restricted engine
/// the microseconds of processor time since the last call if these are more. Throws if none are
/// left or the script was interrupted.
void take_instructions(Context& context, int64_t instructions);

/// Calls the function below its `n_args` arguments on the stack. A Lua error becomes a
/// ScriptError.
void call(lua_State* L, int n_args, int n_results);

/// Turns the error value on top of the stack into a ScriptError and pops it.
ScriptError take_error(lua_State* L);

/// Calls `body(L)` with a new empty stack; this thread runs the state `main` from now on. Every
/// error becomes a ScriptError, including those that Lua's C API raises when memory runs out.
template <class Body>
void protect(lua_State* main, Body body) {
  Context& ctx = context(main);
  ctx.thread = std::this_thread::get_id();
  lua_State* L = ctx.current;  // a coroutine, if a host function calls back
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

/// A Lua value held by C++. Copies share it; it is released with the last copy or the state.
class Ref {
 public:
  Ref() = default;
  /// Takes the value at `index`, which stays on the stack.
  Ref(lua_State* L, int index);
  explicit operator bool() const { return slot_ != nullptr; }
  /// The Lua thread that runs now in this value's state.
  lua_State* state() const;
  /// Pushes the value on `state()`.
  void push() const;

 private:
  struct Slot;
  std::shared_ptr<Slot> slot_;
};

/// Calls `body` and restores the height of the stack of `L`. If `body` throws, the stack is left as
/// it is, because the topmost value may be the Lua error.
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
