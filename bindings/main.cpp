#include "terminal.h"

#include <redco/engine.h>
#include <redco/error.h>
#include <redco/run_log.h>
#include <redco/version.h>

#include <c10/util/Exception.h>

#include <malloc.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace {

enum ExitCode { fine = 0, script_failed = 1, wrong_usage = 2, interrupted = 130 };

redco::Engine* running = nullptr;

// The first Ctrl-C ends the running step; a second one ends the program.
void on_interrupt(int) {
  std::signal(SIGINT, SIG_DFL);
  running->interrupt();
}

// Tensors come and go in sizes of megabytes: with glibc's defaults each costs a system call and
// its pages are zeroed anew.
void keep_freed_memory() {
  constexpr int two_gigabytes = 0x7fffffff;
  mallopt(M_MMAP_THRESHOLD, two_gigabytes);
  mallopt(M_TRIM_THRESHOLD, two_gigabytes);
}

// LibTorch's warnings, each once: the defaults tell C++ lines, and every call anew.
class Warnings : public c10::WarningHandler {
 public:
  explicit Warnings(std::shared_ptr<redco::Console> console) : console_(std::move(console)) {}
  void process(const c10::Warning& warning) override {
    if (seen_.insert(warning.msg()).second) console_->line("redco-lua: warning: " + warning.msg());
  }

 private:
  std::shared_ptr<redco::Console> console_;
  std::set<std::string> seen_;
};

struct Arguments {
  std::vector<std::string> modules;
  std::vector<std::string> chunks;
  bool interactive = false;
  bool no_strict = false;
  std::vector<std::string> script;  // the file and its arguments
};

std::string read_input() { return {std::istreambuf_iterator<char>(std::cin), {}}; }

void run(redco::Engine& engine, const Arguments& args) {
  for (const auto& module : args.modules) engine.run_string("require '" + module + "'", "-l");
  for (const auto& chunk : args.chunks) engine.run_string(chunk, "-e");
  bool nothing_else = args.modules.empty() && args.chunks.empty() && args.script.empty();
  bool prompts = args.interactive || (nothing_else && isatty(STDIN_FILENO));
  if (!args.script.empty()) {
    std::vector<std::string> script_args(args.script.begin() + 1, args.script.end());
    if (args.script[0] == "-")
      engine.run_string(read_input(), "stdin", script_args);
    else
      engine.run_file(args.script[0], script_args);
  } else if (nothing_else && !prompts) {
    engine.run_string(read_input(), "stdin");
  }
  if (prompts) engine.run_string("require('redco.repl')()", "repl");
}

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  CLI::App app(
      "Runs a Lua script that trains or runs models: redco-lua [OPTIONS] [FILE [ARGS]]\n"
      "FILE - is the standard input; flags after FILE are the script's own.",
      "redco-lua");
  Arguments args;
  app.add_option("-e", args.chunks, "Run this piece of Lua")
      ->type_name("CODE")
      ->allow_extra_args(false);
  app.add_option("-l", args.modules, "Load this module")
      ->type_name("MODULE")
      ->allow_extra_args(false);
  app.add_flag("-i", args.interactive, "Go on at a prompt after FILE");
  app.add_flag("--no-strict,--no_strict", args.no_strict, "Let undeclared globals be nil");
  app.set_version_flag("--version", "redco-lua " REDCO_VERSION);
  app.prefix_command();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? fine : wrong_usage;
  }
  args.script = app.remaining();
  if (!args.script.empty() && args.script[0].size() > 1 && args.script[0][0] == '-') {
    std::fprintf(stderr, "redco-lua: there is no flag %s; see redco-lua --help\n",
                 args.script[0].c_str());
    return wrong_usage;
  }
  try {
    auto terminal = redco::make_terminal();
    Warnings warnings(terminal);
    c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    redco::Engine engine({.strict = !args.no_strict, .console = terminal});
    running = &engine;
    std::signal(SIGINT, on_interrupt);
    run(engine, args);
    return fine;
  } catch (const redco::ScriptError& error) {
    std::fprintf(stderr, "redco-lua: %s\n%s\n", error.what(), error.traceback().c_str());
    switch (error.kind()) {
      case redco::ScriptError::Kind::usage:
        return wrong_usage;
      case redco::ScriptError::Kind::interrupted:
        return interrupted;
      case redco::ScriptError::Kind::script:
        break;
    }
  } catch (const redco::UsageError& error) {
    std::fprintf(stderr, "redco-lua: %s\n", error.what());
    return wrong_usage;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "redco-lua: %s\n", error.what());
  }
  return script_failed;
}
