#pragma once

#include <cstdint>

namespace CLI {
class App;
}

namespace redco {

class ScriptEngine;

/// `redco-lua check FILE`: says what is wrong with the data and parameters of a training script.
class CheckCommand {
 public:
  /// Adds it to the program's commands.
  void add_to(CLI::App& program);
  /// Whether the command line has it.
  bool is_given() const;
  /// Throws Error if the check finds an error.
  void run(ScriptEngine& engine) const;

 private:
  CLI::App* command_ = nullptr;
  int64_t n_rows_ = 1000, n_examples_ = 10;
  bool is_json_ = false;
};

}  // namespace redco
