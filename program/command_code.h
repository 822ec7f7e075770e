#pragma once

#include <string>
#include <vector>

namespace redco {

class ScriptEngine;

/// Runs the Lua code of a command of the program with these arguments. An error about the user's
/// input needs no place in that code, so it becomes an Error or a UsageError without one.
void run_command_code(ScriptEngine& engine, const char* code, const std::string& command,
                      const std::vector<std::string>& args);

}  // namespace redco
