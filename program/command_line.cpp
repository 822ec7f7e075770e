// One table has the flags of the program. The command line, --help, the completion of shells and
// the arguments of worker processes are made from it.

#include "command_line.h"

#include "completion.h"

#include <redco/detail/run_secret.h>
#include <redco/error.h>
#include <redco/version.h>

#include <sys/auxv.h>
#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <variant>

namespace redco {

namespace {

enum class For { worker, launcher };

/// The environment variable that a flag sets.
struct Variable {
  const char* name;
};

using Target = std::variant<bool Arguments::*, int64_t Arguments::*, std::string Arguments::*,
                            std::vector<std::string> Arguments::*, Variable>;

struct Flag {
  const char *names, *type, *help;
  For user;  // the launcher keeps its own; workers get the others
  Target sets;
  int64_t least = 0, most = 0;  // of a number
};

constexpr int64_t million = 1000000;

const Flag flags[] = {
    {"-e", "CODE", "Run this Lua code", For::worker, &Arguments::chunks},
    {"-l", "MODULE", "Load this module", For::worker, &Arguments::modules},
    {"-i", "", "Start a prompt after FILE, with its globals", For::worker, &Arguments::interactive},
    {"--no-strict,--no_strict", "", "Let undeclared globals be nil", For::worker,
     &Arguments::no_strict},
    {"--nproc", "N", "Run FILE, or a prompt, in N processes of this machine, one per device",
     For::launcher, &Arguments::nproc, 1, 1024},
    {"--n-processes,--n_processes", "N", "Run FILE on N machines", For::launcher,
     Variable{"REDCO_N_PROCESSES"}},
    {"--process-id,--process_id", "I", "The number of this machine, from 0", For::launcher,
     Variable{"REDCO_PROCESS_ID"}},
    {"--host0-address,--host0_address", "ADDRESS", "The address of machine 0", For::launcher,
     Variable{"REDCO_HOST0_ADDRESS"}},
    {"--host0-port,--host0_port", "PORT", "The port of machine 0; default: 11111", For::launcher,
     Variable{"REDCO_HOST0_PORT"}},
    {"--secret-file,--secret_file", "FILE",
     "File with the secret of the run; default: ~/.config/redco/secret", For::launcher,
     Variable{secret_file_variable}},
    {"--max-restarts,--max_restarts", "N", "Restart FILE after a failure, at most N times",
     For::launcher, &Arguments::max_restarts, 0, million},
    {"--min-processes,--min_processes", "N",
     "Restart with at least N machines if others do not return", For::launcher,
     &Arguments::min_processes, 1, million},
    {"--rejoin-timeout,--rejoin_timeout", "SECONDS", "How long to wait for the others; default: 60",
     For::launcher, &Arguments::rejoin_timeout, 1, million},
    {"--report-sharding,--report_sharding", "",
     "Report at the end which data moved between processes, and how to move less", For::worker,
     &Arguments::report_sharding},
    {"--completion", "SHELL", "Print a completion script for this shell", For::launcher,
     &Arguments::completed_shell},
};

// Adds a flag to the program; the type of the member that it sets decides how.
struct Add {
  CLI::App& app;
  const Flag& flag;
  Arguments& args;

  void operator()(bool Arguments::*member) const {
    app.add_flag(flag.names, args.*member, flag.help);
  }
  void operator()(int64_t Arguments::*member) const {
    app.add_option(flag.names, args.*member, flag.help)
        ->type_name(flag.type)
        ->check(CLI::Range(flag.least, flag.most));
  }
  void operator()(std::string Arguments::*member) const {
    app.add_option(flag.names, args.*member, flag.help)
        ->type_name(flag.type)
        ->check(CLI::IsMember(completed_shells()));
  }
  void operator()(std::vector<std::string> Arguments::*member) const {
    app.add_option(flag.names, args.*member, flag.help)
        ->type_name(flag.type)
        ->allow_extra_args(false);
  }
  void operator()(Variable variable) const {
    auto set = [name = variable.name](const std::string& value) { setenv(name, value.c_str(), 1); };
    app.add_option_function<std::string>(flag.names, set, flag.help)->type_name(flag.type);
  }
};

}  // namespace

CommandLine::CommandLine()
    : app_(std::make_unique<CLI::App>(
          "Runs a Lua script that trains or runs models: redco-lua [OPTIONS] [FILE [ARGS]]\n"
          "Without FILE it starts a prompt. FILE - is standard input.\n"
          "Flags after FILE are passed to the script.",
          "redco-lua")) {
  for (const Flag& flag : flags) std::visit(Add{*app_, flag, args_}, flag.sets);
  add_download_flag(*app_);
  plot_.add_to(*app_);
  plan_.add_to(*app_);
  check_.add_to(*app_);
  model_.add_to(*app_);
  app_->footer(
      "Exit codes: 0, 1 (the script or its data failed), 2 (wrong usage), 130 (interrupted), 128 + "
      "another signal.");
  app_->set_version_flag("--version", "redco-lua " REDCO_VERSION);
  app_->prefix_command();
}

CommandLine::~CommandLine() = default;

std::optional<int> CommandLine::parse(int argc, char** argv) {
  constexpr int fine = 0, wrong_usage = 2;
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app_->exit(error) == 0 ? fine : wrong_usage;
  }
  if (!args_.completed_shell.empty()) {
    std::cout << completion(*app_, args_.completed_shell);
    return fine;
  }
  if (app_->count("--secret-file") > 0) unsetenv(secret_variable);  // the named file counts
  script_ = app_->remaining();
  if (!script_.empty() && script_[0].size() > 1 && script_[0][0] == '-') {
    std::fprintf(stderr, "redco-lua: there is no flag %s; see redco-lua --help\n",
                 script_[0].c_str());
    return wrong_usage;
  }
  return std::nullopt;
}

void CommandLine::check() const {
  const bool calibrates = plan_.is_given() && plan_.is_calibration() && args_.nproc > 1;
  if (plan_.is_given() && is_launcher() && !calibrates)
    throw UsageError(
        "plan runs in one process, without --nproc and --max-restarts: --devices N and --servers "
        "say where the training would run");
  if (plot_.is_given() && is_launcher())
    throw UsageError("plot runs in one process, without --nproc and --max-restarts");
  if (check_.is_given() && is_launcher())
    throw UsageError("check runs in one process, without --nproc and --max-restarts");
  if (model_.is_given() && is_launcher() && !model_.takes_processes())
    throw UsageError(model_.name() + " runs in one process, without --nproc and --max-restarts");
  if (args_.min_processes > 0 && !is_launcher())
    throw UsageError("--min-processes is for restarts: it needs --max-restarts N");
  // A run on one machine needs no secret, but if the user names a file, the file must have one.
  if (app_->count("--secret-file") > 0) (void)find_run_secret();
}

std::vector<std::string> CommandLine::worker_words() const {
  std::vector<std::string> words{"redco-lua"};
  // After a start as `ld.so redco-lua`, /proc/self/exe is the loader, which takes the program's
  // name as an argument.
  if (getauxval(AT_BASE) == 0) words.push_back(program_invocation_name);
  for (const Flag& flag : flags) {
    if (flag.user == For::launcher) continue;
    const std::string all = flag.names, name = all.substr(0, all.find(','));
    const CLI::Option* option = app_->get_option(name);
    if (option->count() == 0) continue;
    if (*flag.type == '\0') {
      words.push_back(name);
      continue;
    }
    for (const std::string& value : option->results()) words.insert(words.end(), {name, value});
  }
  const auto rest = plan_.is_given()    ? plan_.calibration_words()
                    : model_.is_given() ? model_.words()
                                        : script_;
  words.insert(words.end(), rest.begin(), rest.end());
  return words;
}

}  // namespace redco
