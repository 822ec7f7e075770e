#pragma once

#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace redco {

class ScriptEngine;

/// `redco-lua plot WORKDIR`, which draws the metrics of a run.
struct PlotCommand {
  std::string workdir;
  std::optional<std::string> out;  ///< none: the terminal
  std::vector<std::string> metrics;

  /// Makes it a command of the program.
  void add_to(CLI::App& program);
  void run(ScriptEngine& engine) const;
};

}  // namespace redco
