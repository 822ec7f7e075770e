#pragma once

#include <redco/turns.h>

#include <functional>
#include <optional>
#include <string>

namespace redco {

/// Whether the launcher has started this process as one of several that share a prompt.
bool shares_prompt();

/// What the processes that share a prompt do; errors are thrown as ScriptError.
struct SharedPrompt {
  /// Reads what is typed, on process 0: a whole chunk, nothing at its end.
  std::function<std::optional<std::string>()> read;
  /// Runs it, on all.
  std::function<void(const std::string& chunk)> run;
  /// Forgets an interrupt that came too late.
  std::function<void()> calm;
};

/// Reads and runs chunks until there are no more. An error of one process, or Ctrl-C, ends the
/// chunk on all; those that failed first, and alike, show it. Throws Error when a process is gone.
void run_prompt(const SharedPrompt& prompt);

}  // namespace redco
