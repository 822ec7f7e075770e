#pragma once

#include <redco/error.h>
#include <redco/export.h>
#include <redco/host_type.h>
#include <redco/tree.h>

#include <csignal>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

struct lua_State;

namespace redco {

class Console;

/// An error of a script. `what()` is its message, with file and line.
class REDCO_API ScriptError : public Error {
 public:
  enum class Kind {
    script,       ///< the script or its data failed
    usage,        ///< the script was given wrong arguments
    interrupted,  ///< Engine::interrupt
    stopped,      ///< request_stop: a training run was saved and ended
    out_of_steps  ///< Engine::set_step_limit
  };

  ScriptError(const std::string& message, std::string traceback, Kind kind, int signal = 0)
      : Error(message), traceback_(std::move(traceback)), kind_(kind), signal_(signal) {}
  const std::string& traceback() const { return traceback_; }
  Kind kind() const { return kind_; }
  /// What request_stop was told; 0 for other kinds.
  int signal() const { return signal_; }

 private:
  std::string traceback_;
  Kind kind_;
  int signal_;
};

struct EngineOptions {
  /// An undeclared global is an error, when read and when written.
  bool strict = true;
  /// Where the lines and the progress of training runs go, and LibTorch's warnings, each once: on
  /// the thread that runs the engine. Null: nowhere.
  std::shared_ptr<Console> console = {};
  /// Scripts get tensors and what computes with them (torch, nn, optim, tree, metrics, grad, vmap),
  /// and of Lua what reads and writes nothing but values. There is no io, package, debug, ffi, jit
  /// or load, no os but its clocks, no file or connection of this library's. Modules are read-only,
  /// `print` writes to the console, `require` finds those modules and nothing else, and LuaJIT's
  /// compiler is off. lua/redco/restricted.lua is the list, bindings/allowed_operators.cpp that of
  /// the operators: those whose kernels look at indices and sizes before they follow them. Tensors
  /// are made on the CPU alone, and zeroed first. What else a script may do is what the program
  /// registers; a tensor that the program gives may be written to, as far as its own elements go.
  ///
  /// Gradient mode, autocast and other modes of the thread are put back after each call, and the
  /// engine's random numbers are its own: torch.manual_seed seeds them alone. Functions of the
  /// program run as outside of the engine.
  ///
  /// Set all three limits too: none is set here. Between them they end what runs too long or takes
  /// too much, except one operator that has begun: those whose size says that they would take more
  /// steps than are left are refused, by an estimate.
  ///
  /// This confines mistakes, and scripts that go where they should not; it is no wall against an
  /// attacker, who needs one error in LuaJIT or in one of the listed operators: for that run the
  /// engine in a process without rights, with limits of its own for memory and time.
  bool restricted = false;
  /// Whether to keep what sharding_report tells. The processes of a run stay connected until the
  /// engine is destroyed.
  bool records_sharding = false;
};

/// A Lua state with the whole Lua surface in it. Several may live in one process, each used by one
/// thread at a time. Errors are thrown as Error, those of scripts as ScriptError. Names of globals
/// have no dots but where they reach into tables. The library prints nothing, ends no process, and
/// leaves signal handlers and the locale alone. What LibTorch logs about connections its
/// TORCH_CPP_LOG_LEVEL rules; for that log it looks up the names of addresses, which takes seconds
/// where no name server answers: program/numeric_addresses.cpp is what a program can do about it.
class REDCO_API Engine {
 public:
  explicit Engine(EngineOptions options = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Runs a script; `args` are its `...` and its global table `arg`. `require` also finds modules
  /// in the script's folder.
  void run_file(const std::string& path, const std::vector<std::string>& args = {});

  /// Runs a piece of Lua in the same way; `name` stands for the file, in error messages too.
  void run_string(const std::string& code, const std::string& name = "string",
                  const std::vector<std::string>& args = {});

  /// Calls a global function, dots reach into tables: `call("model.forward", {x})`.
  std::vector<Tree> call(const std::string& function, const std::vector<Tree>& args);

  Tree get_global(const std::string& name);
  void set_global(const std::string& name, const Tree& value);

  /// A C++ class for Lua, with what is then said of it: see HostType. `name` is that of the type.
  template <class T>
  HostType<T> register_type(const std::string& name) {
    return HostType<T>(*this, name);
  }

  /// An object of a registered class; Lua shares it.
  template <class T>
  void set_global(const std::string& name, std::shared_ptr<T> object) {
    host::set_global(*this, name, std::move(object), typeid(T));
  }

  /// A C++ function for Lua, as a global. What it throws is a Lua error.
  void register_function(const std::string& name,
                         std::function<std::vector<Tree>(const std::vector<Tree>&)> function);

  /// Asks the training runs of this engine to save and end: redco::request_stop for it alone.
  bool request_stop(int signal = SIGTERM) noexcept;

  /// Ends what runs, or what is run next, with an error at the next operator or other function of
  /// the surface. For any thread, and for a signal handler. In a handler on the thread that runs
  /// the engine, it also ends loops of plain Lua, except those that LuaJIT has compiled. With a
  /// step limit it ends all loops.
  void interrupt() noexcept;

  /// How many bytes Lua's own values may take from now on; tensors do not count. What needs more
  /// ends as a script error, "not enough memory". The first call turns LuaJIT's compiler off.
  void set_memory_limit(size_t bytes);

  /// How many bytes the tensors on the CPU that a restricted engine's scripts make may take from
  /// now on; 0: any number. What needs more ends as a script error, "not enough memory". Counted is
  /// what LibTorch's allocator gives to the thread that runs the engine, also what an operator
  /// needs in between. Not counted: tensors of the program, and what kernels allocate in other ways
  /// or on other threads, which is in proportion to their arguments.
  void set_tensor_memory_limit(size_t bytes);

  /// How many instructions of Lua one run_file, run_string or call may take from now on, in
  /// thousands rounded up; 0: any number. What needs more ends as a script error of the kind
  /// out_of_steps. The first call turns LuaJIT's compiler off.
  ///
  /// In a restricted engine operators take steps too, those that backward calls among them: 20 and
  /// one for each 16 elements, or for each 256 multiplications of a product; slow functions more
  /// (bindings/operator_work.cpp). They are counted before the operator begins. So do the functions
  /// of `string` that search. Where 1000 instructions take more than a millisecond of the thread's
  /// time, because they join long strings or move long tables, each microsecond is a step. An
  /// engine that is not restricted can be held up, by one operator or one function of Lua, or by a
  /// script that fills the stack and catches that error for ever.
  void set_step_limit(int64_t instructions);

  /// What the sharding of the runs so far did, and what to do about it: redco::sharding_report.
  /// Empty on all processes of a run but number 0. Throws Error unless EngineOptions asked for it.
  std::string sharding_report() const;

  /// The state itself, for what this class does not offer.
  lua_State* state() const;

  struct Impl;

 private:
  friend void host::make_type(Engine&, const std::string&, std::type_index);
  friend void host::add_member(Engine&, std::type_index, host::Member, const std::string&,
                               host::Function);
  friend void host::set_global(Engine&, const std::string&, std::shared_ptr<void>, std::type_index);

  std::shared_ptr<Impl> impl_;
};

/// Gives a LuaJIT state of the program's own, until its end, what an Engine's has: there
/// `require "redco"` works from here on. Every C function of the state then goes through a wrapper
/// that turns C++ exceptions into Lua errors. Once for a state is enough; `console` may be null.
REDCO_API void open_modules(lua_State* L, std::shared_ptr<Console> console);

}  // namespace redco
