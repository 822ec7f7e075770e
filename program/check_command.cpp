// The command `redco-lua check`. Its Lua code is in lua/redco/check.

#include "check_command.h"

#include "command_code.h"

#include <redco/error.h>
#include <redco/script_engine.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace redco {

void CheckCommand::add_to(CLI::App& program) {
  constexpr int64_t million = 1000000;
  command_ = program.add_subcommand(
      "check", "Find mistakes in the data of the training in FILE: check [OPTIONS] FILE [ARGS]");
  command_->add_option("--rows", n_rows_, "Check at most N examples; default: 1000")
      ->type_name("N")
      ->check(CLI::Range(int64_t(1), million));
  command_->add_option("--examples", n_examples_, "Show N examples; default: 10")
      ->type_name("N")
      ->check(CLI::Range(int64_t(0), million));
  command_->add_flag("--json", is_json_, "Print one JSON document");
  command_->prefix_command();
}

bool CheckCommand::is_given() const { return command_->parsed(); }

void CheckCommand::run(ScriptEngine& engine) const {
  std::vector<std::string> script = command_->remaining();
  if (script.empty()) throw UsageError("check: give the script: redco-lua check [OPTIONS] FILE");
  if (script[0].starts_with("-"))
    throw UsageError("check: there is no flag " + script[0] + "; see redco-lua check --help");
  const std::string name = script[0];
  script.erase(script.begin());
  run_command_code(engine, R"(
    local n_rows, n_examples = ...
    require "redco.check.run".start {
      n_rows = tonumber(n_rows), n_examples = tonumber(n_examples) })",
                   "check", {std::to_string(n_rows_), std::to_string(n_examples_)});
  std::string failure;
  try {
    engine.run_file(name, script);
  } catch (const ScriptError& error) {
    if (error.kind() != ScriptError::Kind::script) throw;
    failure = error.what();
  }
  run_command_code(engine, R"(
    local name, failure, json = ...
    require "redco.check.run".finish(name, failure, json == "true"))",
                   "check", {name, failure, is_json_ ? "true" : "false"});
}

}  // namespace redco
