#pragma once

#include <redco/detail/turns.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

namespace redco {

/// The variable by which the launcher tells processes that they share a prompt, and the columns of
/// the terminal that shows what they write; 0: it is none.
constexpr const char* prompt_variable = "REDCO_PROMPT";
bool shares_prompt();

/// The prompt that this process shares with the others of its run: number 0 has it.
class SharedPrompt {
 public:
  SharedPrompt();
  bool is_here() const { return processes_.rank == 0; }
  /// Columns that are left for values beside the ranks; 0 where no terminal shows them.
  size_t width() const { return width_; }

  /// As in Turns.
  void give(const std::optional<std::string>& chunk) { turns_.give(chunk); }
  std::optional<std::string> take() { return turns_.take(); }

  /// Runs `body` as one turn. It returns the message of its error, or nothing, and `show` is called
  /// where that is the first of the turn: on one process, or those that failed alike. What all have
  /// written has come out when it returns where the prompt is.
  void turn(const std::function<std::string()>& body, const std::function<void()>& show);

  /// While it lives what is written goes to the terminal as it is: for the prompt itself.
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
