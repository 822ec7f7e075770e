#pragma once

#include <redco/export.h>
#include <redco/tree.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

struct lua_State;

namespace redco {

class Console;

struct EngineOptions {
  /// An undeclared global is an error, when read and when written.
  bool strict = true;
  /// Where the lines and the progress of training runs go; null: nowhere.
  std::shared_ptr<Console> console;
};

/// A Lua state with the whole Lua surface in it. Several may live in one process, each used by one
/// thread at a time. Errors of scripts are thrown as redco::Error with the script's file and line.
class REDCO_API Engine {
 public:
  explicit Engine(EngineOptions options = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Runs a script; `args` are its `...` and its global table `arg`.
  void run_file(const std::string& path, const std::vector<std::string>& args = {});

  /// Runs a piece of Lua; `name` stands for the file in error messages.
  void run_string(const std::string& code, const std::string& name = "string");

  /// Calls a global function, dots reach into tables: `call("model.forward", {x})`.
  std::vector<Tree> call(const std::string& function, const std::vector<Tree>& args);

  Tree get_global(const std::string& name);
  void set_global(const std::string& name, const Tree& value);

  /// A C++ function for Lua, as a global. What it throws is a Lua error.
  void register_function(const std::string& name,
                         std::function<std::vector<Tree>(const std::vector<Tree>&)> function);

  /// The state itself, for what this class does not offer.
  lua_State* state() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace redco
