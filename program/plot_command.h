#pragma once

#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace redco {

class ScriptEngine;

/// `redco-lua plot WORKDIR`: draws the metrics of a run.
struct PlotCommand {
  std::string workdir;
  std::optional<std::string> out;  ///< nullopt: to the terminal
  std::vector<std::string> metrics;

  /// Adds it to the program's commands.
  void add_to(CLI::App& program);
  /// Whether the command line has it.
  bool is_given() const { return !workdir.empty(); }
  void run(ScriptEngine& engine) const;
};

}  // namespace redco
