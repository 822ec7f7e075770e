#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace redco {

class ScriptEngine;

/// `redco-lua chat PATH`, `generate PATH [PROMPT]` and `serve PATH`: text of a model.
class TalkCommands {
 public:
  /// Adds them to the program's commands.
  void add_to(CLI::App& program);
  /// Whether the command line has one of them.
  bool is_given() const;
  /// The name of the given one.
  std::string name() const;
  void run(ScriptEngine& engine) const;

 private:
  const CLI::App* given() const;

  std::vector<CLI::App*> commands_;
  std::string path_;
  std::vector<std::string> prompt_;  // empty: standard input
};

}  // namespace redco
