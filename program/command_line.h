// The command line of redco-lua.

#pragma once

#include "check_command.h"
#include "model_commands.h"
#include "plan_command.h"
#include "plot_command.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace redco {

/// The values that flags set. Each is a row of the table in command_line.cpp.
struct Arguments {
  std::vector<std::string> modules, chunks;
  bool interactive = false;
  bool no_strict = false;
  bool report_sharding = false;
  int64_t nproc = 1;
  int64_t max_restarts = 0;
  int64_t min_processes = 0;    // 0: all
  int64_t rejoin_timeout = 60;  // seconds
  std::string completed_shell;
};

class CommandLine {
 public:
  CommandLine();
  ~CommandLine();

  /// Reads the words. Returns an exit code if nothing is left to do: help was printed, or an error.
  /// Flags that say which of several machines this is set the environment variables of the same
  /// meaning.
  std::optional<int> parse(int argc, char** argv);
  /// Throws UsageError if flags do not go together.
  void check() const;

  bool has_prompt() const {
    return args_.interactive ||
           (args_.modules.empty() && args_.chunks.empty() && script_.empty() && !has_command());
  }
  /// Whether this process starts others and does nothing else.
  bool is_launcher() const { return args_.nproc > 1 || args_.max_restarts > 0; }
  /// The words for a process that this one starts: the same without the flags of a launcher.
  std::vector<std::string> worker_words() const;

  /// Whether it is `redco-lua plot`, `plan`, `check`, `chat`, `generate`, `serve` or `evaluate`.
  bool has_command() const {
    return plot_.is_given() || plan_.is_given() || check_.is_given() || model_.is_given();
  }
  const Arguments& args() const { return args_; }
  /// The file and its arguments.
  const std::vector<std::string>& script() const { return script_; }
  const PlotCommand& plot() const { return plot_; }
  const PlanCommand& plan() const { return plan_; }
  const CheckCommand& check_command() const { return check_; }
  const ModelCommands& model() const { return model_; }

 private:
  Arguments args_;
  PlotCommand plot_;
  PlanCommand plan_;
  CheckCommand check_;
  ModelCommands model_;
  std::vector<std::string> script_;
  std::unique_ptr<CLI::App> app_;
};

}  // namespace redco
