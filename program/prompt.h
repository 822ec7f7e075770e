#pragma once

#include <memory>

namespace redco {

class Console;
class ScriptEngine;

/// Reads chunks of Lua from standard input, runs them and prints their values, until the input
/// ends. At a terminal with line editing, elsewhere without prompts. Errors are printed to the
/// console and end only their chunk. Throws ScriptError if the program must end.
void run_prompt(ScriptEngine& engine, Console& console);

}  // namespace redco
