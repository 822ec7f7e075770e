#pragma once

#include <redco/error.h>
#include <redco/export.h>
#include <redco/tree.h>

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
    stopped,      ///< redco::request_stop: a training run was saved and ended
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
  /// Where the lines and the progress of training runs go; null: nowhere.
  std::shared_ptr<Console> console = {};
  /// Whether to keep what sharding_report tells. The processes of a run stay connected until the
  /// engine is destroyed.
  bool records_sharding = false;
};

/// A Lua state with the whole Lua surface in it. Several may live in one process, each used by one
/// thread at a time. Errors of scripts are thrown as ScriptError.
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

  /// A C++ function for Lua, as a global. What it throws is a Lua error.
  void register_function(const std::string& name,
                         std::function<std::vector<Tree>(const std::vector<Tree>&)> function);

  /// Ends what runs, or what is run next, with an error at the next operator or other function of
  /// the surface. For any thread, and for a signal handler. In a handler on the thread that runs
  /// the engine, it also ends loops of plain Lua, except those that LuaJIT has compiled.
  void interrupt() noexcept;

  /// How many bytes Lua's own values may take from now on; tensors do not count. What needs more
  /// ends as a script error, "not enough memory". The first call turns LuaJIT's compiler off.
  void set_memory_limit(size_t bytes);

  /// What the sharding of the runs so far did, and what to do about it: redco::sharding_report.
  /// Empty on all processes of a run but number 0. Throws Error unless EngineOptions asked for it.
  std::string sharding_report() const;

  /// The state itself, for what this class does not offer.
  lua_State* state() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace redco
