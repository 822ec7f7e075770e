#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace redco {

class ScriptEngine;

/// Adds the flag with which names of the Hugging Face Hub are downloaded.
void add_download_flag(CLI::App& command);

/// `redco-lua chat PATH`, `generate PATH [PROMPT]`, `serve PATH` and `evaluate MODEL TASK...`: the
/// commands that open a model.
class ModelCommands {
 public:
  /// Adds them to the program's commands.
  void add_to(CLI::App& program);
  /// Whether the command line has one of them.
  bool is_given() const { return given() != nullptr; }
  /// The name of the given one.
  std::string name() const;
  /// Whether the given one runs in several processes.
  bool takes_processes() const;
  /// The words of the given one, for the processes of a launcher.
  std::vector<std::string> words() const;
  void run(ScriptEngine& engine) const;

 private:
  const CLI::App* given() const;

  std::vector<CLI::App*> commands_;
  std::string path_;
  std::vector<std::string> texts_;  ///< the prompt, if any, or the tasks
};

}  // namespace redco
