// Runs Lua scripts inside a C++ program.

#pragma once

#include <redco/export.h>
#include <redco/host_type.h>
#include <redco/script_error.h>
#include <redco/tree.h>

#include <csignal>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

struct lua_State;

namespace redco {

class Console;

struct ScriptEngineOptions {
  /// Reading or writing an undeclared global raises an error.
  bool strict = true;
  /// Receives the output of training runs (lines and progress) and LibTorch's warnings, each
  /// warning once, on the thread that runs the engine. Null: no output.
  std::shared_ptr<Console> console = {};
  /// Runs scripts with restricted globals: tensors and the modules that compute with them (torch,
  /// nn, optim, tree, metrics, grad, vmap), and the functions of Lua that only read and write
  /// values. Not available are io, package, debug, ffi, jit, load, all of os but the clocks, and
  /// this library's files and connections. Modules are read-only, `print` writes to the console,
  /// `require` finds only these modules, and LuaJIT's compiler is off. lua/redco/restricted.lua
  /// lists the functions. Tensors are created only on the CPU. Anything else must be registered by
  /// the program. A script may write to the elements of a tensor that the program passes to it.
  ///
  /// Gradient mode, autocast and other modes of the thread are restored after each call. The engine
  /// has a separate random generator: torch.manual_seed seeds only this one. Functions of the
  /// program run as if outside the engine.
  ///
  /// Set all three limits too; there are none by default. Together they end most scripts that run
  /// too long or use too much memory. They cannot end a running operator or function of Lua.
  ///
  /// This is for honest mistakes. It is no wall: a script can crash the process, read its memory or
  /// run without end. Run scripts that are not trusted in a Sandbox (redco/sandbox.h).
  bool restricted = false;
  /// os.exit ends the process, as in a stand-alone interpreter. Otherwise it ends the running
  /// script with a ScriptError of the kind exited. If the script catches it with `pcall`, the next
  /// function of the library, or the end of the script, raises it again.
  bool exits_process = false;
  /// Keeps the data for sharding_report. The processes of a run stay connected until the engine
  /// is destroyed.
  bool reports_sharding = false;
};

/// A Lua state with all Lua modules of this library. A process may have several engines; each is
/// used by one thread at a time. Errors are thrown as Error, those of scripts as ScriptError. Dots
/// in names of globals denote fields of tables. The library does not print, does not end the
/// process, and does not change signal handlers or the locale. TORCH_CPP_LOG_LEVEL controls
/// LibTorch's log of connections.
class REDCO_API ScriptEngine {
 public:
  using UntypedFunction = std::function<std::vector<Tree>(const std::vector<Tree>&)>;

  explicit ScriptEngine(ScriptEngineOptions options = {});
  ~ScriptEngine();
  ScriptEngine(const ScriptEngine&) = delete;
  ScriptEngine& operator=(const ScriptEngine&) = delete;

  /// Runs a script; `args` are its `...` and its global table `arg`. `require` also finds modules
  /// in the script's folder.
  void run_file(const std::string& path, const std::vector<std::string>& args = {});

  /// Runs Lua code in the same way; `name` replaces the file name, also in error messages.
  void run_string(const std::string& code, const std::string& name = "string",
                  const std::vector<std::string>& args = {});

  /// Calls a global function; dots denote fields of tables: `call("model.forward", {x})`.
  std::vector<Tree> call(const std::string& function, const std::vector<Tree>& args);

  Tree get_global(const std::string& name);
  void set_global(const std::string& name, const Tree& value);

  /// Registers a C++ class as a Lua type called `name`. Describe it with the HostType returned.
  template <class T>
  HostType<T> register_type(const std::string& name) {
    return HostType<T>(*this, name);
  }

  /// Sets a global to an object of a registered class. Lua shares ownership.
  template <class T>
  void set_global(const std::string& name, std::shared_ptr<T> object) {
    host::set_global(*this, name, std::move(object), typeid(T));
  }

  /// Registers a C++ function or lambda as a global. Its parameters and its result have the types
  /// of HostType's methods, and arguments are converted and checked as theirs:
  ///
  ///     engine.register_function("add", [](double a, double b) { return a + b; });
  ///
  /// Its exceptions become Lua errors.
  template <class F>
  requires(!std::is_convertible_v<F, UntypedFunction>) void register_function(
      const std::string& name, F function) {
    host::add_function(*this, name, [function = std::move(function)](HostCall& call) mutable {
      host::Signature<F>::type::call(call, 1, function);
    });
  }

  /// The same for a function of any number of arguments and results. A whole number is an int64_t
  /// in a Tree, which Tree::as<double> converts.
  void register_function(const std::string& name, UntypedFunction function);

  /// Asks the training runs of this engine to save and end, like redco::request_stop for one
  /// engine.
  bool request_stop(int signal = SIGTERM) noexcept;

  /// Ends the running call, or the next one, with an error at the next operator or other function
  /// of the library. May be called from any thread and from a signal handler. In a handler on the
  /// thread that runs the engine, it also ends loops of plain Lua, except those that LuaJIT has
  /// compiled. With an instruction limit it ends all loops.
  void interrupt() noexcept;

  /// Limits the bytes of Lua values from now on; tensors do not count. A script that needs more
  /// fails with "not enough memory". The first call turns LuaJIT's compiler off.
  void set_memory_limit(size_t bytes);

  /// Limits the bytes of CPU tensors created by the scripts of a restricted engine, from now on; 0:
  /// no limit. A script that needs more fails with "not enough memory". It counts the memory that
  /// LibTorch's allocator gives to the thread that runs the engine, including temporary tensors of
  /// operators. It does not count tensors of the program, nor what kernels allocate in other ways
  /// or on other threads, which is in proportion to their arguments.
  void set_tensor_memory_limit(size_t bytes);

  /// Limits the Lua instructions of one run_file, run_string or call from now on, rounded up to
  /// thousands; 0: no limit. A script that needs more fails with a ScriptError of the kind
  /// out_of_instructions. The first call turns LuaJIT's compiler off.
  ///
  /// In a restricted engine each operator takes 20 instructions too, including those that backward
  /// calls. If 1000 instructions or one operator take longer, each microsecond of the thread's time
  /// is a step. One operator, one function of Lua, or in an unrestricted engine a script that fills
  /// the stack and catches that error forever, can run without end.
  void set_instruction_limit(int64_t instructions);

  /// Returns redco::sharding_report for the runs so far: what sharding did, and advice. Empty on
  /// all processes of a run except process 0. Throws Error unless ScriptEngineOptions enabled it.
  std::string sharding_report() const;

  /// The Lua state, for functions that this class does not offer.
  lua_State* state() const;

  struct Impl;

 private:
  friend void host::make_type(ScriptEngine&, const std::string&, std::type_index);
  friend void host::add_member(ScriptEngine&, std::type_index, host::Member, const std::string&,
                               host::Function);
  friend void host::add_function(ScriptEngine&, const std::string&, host::Function);
  friend void host::set_global(ScriptEngine&, const std::string&, std::shared_ptr<void>,
                               std::type_index);

  std::shared_ptr<Impl> impl_;
};

/// Adds the modules of a ScriptEngine to a LuaJIT state that the program created, until it is
/// closed: `require "redco"` works in it from then on. Every C function of the state is then called
/// through a wrapper that turns C++ exceptions into Lua errors, and the global `pairs` visits
/// tables in the same order on all processes. Call it once per state; `console` may be null.
REDCO_API void open_modules(lua_State* L, std::shared_ptr<Console> console);

}  // namespace redco
