#include "command_code.h"

#include <redco/error.h>
#include <redco/script_engine.h>

namespace redco {

namespace {

// Removes the place at the beginning, such as "plan:3: ".
std::string without_place(std::string text, const std::string& command) {
  if (!text.starts_with(command + ":")) return text;
  const size_t digits = command.size() + 1, end = text.find_first_not_of("0123456789", digits);
  if (end != digits && text.compare(end, 2, ": ") == 0) text.erase(0, end + 2);
  return text;
}

}  // namespace

void run_command_code(ScriptEngine& engine, const char* code, const std::string& command,
                      const std::vector<std::string>& args) {
  try {
    engine.run_string(code, command, args);
  } catch (const ScriptError& error) {
    const std::string text = without_place(error.what(), command);
    if (error.kind() == ScriptError::Kind::usage) throw UsageError(text);
    if (error.kind() == ScriptError::Kind::script) throw Error(text);
    // The place at which Ctrl-C stopped the code does not help the user.
    if (error.kind() == ScriptError::Kind::interrupted) throw ScriptError(text, "", error.kind());
    throw;
  }
}

}  // namespace redco
