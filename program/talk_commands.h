#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace redco {

class ScriptEngine;

/// `redco-lua chat PATH` and `redco-lua generate PATH [PROMPT]`: text of a model in the terminal.
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
  CLI::App *chat_ = nullptr, *generate_ = nullptr;
  std::string path_;
  std::vector<std::string> prompt_;  // empty: standard input
};

}  // namespace redco
