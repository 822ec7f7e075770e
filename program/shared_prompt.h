// A prompt shared by the processes of a run.

#pragma once

#include <redco/detail/turns.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

namespace redco {

/// The variable that the launcher sets for processes that share a prompt: the number of columns of
/// the terminal that shows their output, or 0 without a terminal.
constexpr const char* prompt_variable = "REDCO_PROMPT";
bool shares_prompt();

/// A prompt that this process shares with the others of its run. Process 0 reads the input.
class SharedPrompt {
 public:
  SharedPrompt();
  bool is_here() const { return processes_.rank == 0; }
  /// The columns left for values beside the rank prefixes; 0 without a terminal.
  size_t width() const { return width_; }

  /// As in Turns.
  void give(const std::optional<std::string>& chunk) { turns_.give(chunk); }
  std::optional<std::string> take() { return turns_.take(); }

  /// Runs `body` as one turn on all processes. `body` returns its error message, or "". `show` is
  /// called for the first error of the turn: on one process, or on all that failed alike. On
  /// process 0 it returns once the output of all processes is printed.
  void turn(const std::function<std::string()>& body, const std::function<void()>& show);

  /// While it exists, output goes directly to the terminal: for the prompt itself.
  class AtTerminal {
   public:
    AtTerminal();
    ~AtTerminal();
    AtTerminal(const AtTerminal&) = delete;
    AtTerminal& operator=(const AtTerminal&) = delete;

   private:
    int output_;
  };

 private:
  void draw_alike();

  Processes processes_;
  Turns turns_;
  size_t width_;
};

}  // namespace redco
