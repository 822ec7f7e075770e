#pragma once

#include <memory>

namespace redco {

class Console;
class ScriptEngine;

/// Reads chunks of Lua from standard input, runs them and shows their values, until the input ends:
/// with line editing at a terminal, without prompts elsewhere. Errors go to the console, and end
/// only their chunk. Throws ScriptError for what ends the program.
void run_prompt(ScriptEngine& engine, Console& console);

}  // namespace redco
