// The program redco-lua: command line, signals and exit codes.

#include "busy_cores.h"
#include "completion.h"
#include "error_file.h"
#include "launcher.h"
#include "plan_command.h"
#include "plot_command.h"
#include "prompt.h"
#include "shared_prompt.h"
#include "standard_files.h"
#include "terminal.h"

#include <redco/detail/cores.h>
#include <redco/detail/forced_stop.h>
#include <redco/detail/notices.h>
#include <redco/detail/printable.h>
#include <redco/detail/run_secret.h>
#include <redco/error.h>
#include <redco/mapped_files.h>
#include <redco/mesh.h>
#include <redco/run_log.h>
#include <redco/script_engine.h>
#include <redco/stop.h>
#include <redco/tensor_heap.h>
#include <redco/version.h>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Logging.h>

#include <sys/auxv.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace {

enum ExitCode { fine = 0, script_failed = 1, wrong_usage = 2, interrupted = 130 };

redco::ScriptEngine* running = nullptr;

// How long the script may take to notice an interrupt: a compiled Lua loop never does.
constexpr unsigned seconds_to_hear = 4;

// The first Ctrl-C ends the running step; a second one ends the program.
void on_interrupt(int) {
  std::signal(SIGINT, SIG_DFL);
  alarm(seconds_to_hear);
  redco::request_interrupt();  // for waits outside Lua
  running->interrupt();
}

// Acts as a second Ctrl-C, unless the first was noticed.
void on_alarm(int) {
  if (redco::is_interrupt_pending()) std::raise(SIGINT);
}

// A training run saves and ends. If there is none, the signal ends the program.
void on_stop(int signal) {
  if (redco::request_stop(signal)) return;
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// Silences LibTorch's log of connections; its errors are also thrown.
void silence_log() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = 3;  // fatal
}

struct Arguments {
  std::vector<std::string> modules;
  std::vector<std::string> chunks;
  bool interactive = false;
  bool no_strict = false;
  bool report_sharding = false;
  int64_t nproc = 1;
  redco::Restarts restarts;
  int64_t rejoin_timeout = 60;      // seconds
  std::vector<std::string> script;  // the file and its arguments

  bool has_prompt() const {
    return interactive || (modules.empty() && chunks.empty() && script.empty());
  }
};

// Options for a run on several machines; --nproc counts the processes on each.
struct Place {
  const char *flag, *variable, *type, *help;
};
constexpr Place places[] = {
    {"--n-processes,--n_processes", "REDCO_N_PROCESSES", "N", "Run FILE on N machines"},
    {"--process-id,--process_id", "REDCO_PROCESS_ID", "I", "The number of this machine, from 0"},
    {"--host0-address,--host0_address", "REDCO_HOST0_ADDRESS", "ADDRESS",
     "The address of machine 0"},
    {"--host0-port,--host0_port", "REDCO_HOST0_PORT", "PORT",
     "The port of machine 0; default: 11111"},
    {"--secret-file,--secret_file", redco::secret_file_variable, "FILE",
     "File with the secret of the run; default: ~/.config/redco/secret"},
};

// The command line of a worker: the same as this process, without the launcher's options.
std::vector<std::string> worker_command(const Arguments& args) {
  std::vector<std::string> words{"redco-lua"};
  // Run as `ld.so redco-lua`, /proc/self/exe is the loader, which takes the program's name.
  if (getauxval(AT_BASE) == 0) words.push_back(program_invocation_name);
  for (const auto& module : args.modules) words.insert(words.end(), {"-l", module});
  for (const auto& chunk : args.chunks) words.insert(words.end(), {"-e", chunk});
  if (args.no_strict) words.push_back("--no-strict");
  if (args.report_sharding) words.push_back("--report-sharding");
  if (args.interactive) words.push_back("-i");
  words.insert(words.end(), args.script.begin(), args.script.end());
  return words;
}

int run_workers(const Arguments& args) {
  bool share_prompt = args.has_prompt();
  if (!args.script.empty() && args.script[0] == "-")
    throw redco::UsageError("--nproc needs a FILE: several processes do not share their input");
  redco::Processes place = redco::find_processes();
  if (place.is_worker)
    throw redco::UsageError(
        "--nproc starts the processes of a run, and --max-restarts starts them again, but this "
        "one is already among several: RANK and WORLD_SIZE are set, and their launcher restarts");
  if (share_prompt && (args.restarts.max > 0 || place.size > 1))
    throw redco::UsageError(
        "--max-restarts needs a FILE, and so do several machines: a prompt is not restarted, and "
        "its processes are on one machine");
  redco::Restarts restarts = args.restarts;
  if (restarts.min_hosts > place.size)
    throw redco::UsageError("--min-processes counts machines: there are " +
                            std::to_string(place.size) + " (--n-processes), not " +
                            std::to_string(restarts.min_hosts));
  restarts.next_meeting = std::chrono::seconds(args.rejoin_timeout);
  return redco::launch(place, args.nproc, restarts, worker_command(args), share_prompt);
}

// Reports why this process ends, to the terminal, the launcher and torchrun. Returns its exit code.
int report_end(ExitCode code, const std::string& message, const std::string& traceback = "") {
  std::string text = traceback.empty() ? message : message + "\n" + traceback;
  // The launcher prints errors that end a shared prompt, once.
  if (!redco::shares_prompt()) std::fprintf(stderr, "redco-lua: %s\n", text.c_str());
  redco::report_failure(text, code);
  redco::write_error_file(message, traceback);
  return code;
}

ExitCode code_of(redco::ScriptError::Kind kind) {
  switch (kind) {
    case redco::ScriptError::Kind::usage:
      return wrong_usage;
    case redco::ScriptError::Kind::interrupted:
      return interrupted;
    case redco::ScriptError::Kind::script:
    case redco::ScriptError::Kind::stopped:
    case redco::ScriptError::Kind::out_of_steps:
    case redco::ScriptError::Kind::exited:
      break;
  }
  return script_failed;
}

// Ends the program when a script does not. May run on any thread.
[[noreturn]] void force_end(int signal, const std::string& text) {
  std::fprintf(stderr, "redco-lua: %s\n", text.c_str());
  redco::report_failure(text, 128 + signal);
  _exit(128 + signal);
}

// Seeds the default generator alike on all processes of a run, and differently in each run.
void draw_alike(const redco::Processes& processes) {
  if (processes.size == 1) return;
  std::string run =
      processes.store_address + ":" + std::to_string(processes.store_port) + " " + processes.run;
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  generator.set_current_seed(std::hash<std::string>()(run));
}

// Prints the sharding report when the run ends, also after an error.
class ReportAtEnd {
 public:
  ReportAtEnd(const redco::ScriptEngine& engine, redco::Console& console)
      : engine_(engine), console_(console) {}
  ~ReportAtEnd() {
    std::string report = engine_.sharding_report();
    if (!report.empty()) console_.line("redco-lua: " + report);
  }

 private:
  const redco::ScriptEngine& engine_;
  redco::Console& console_;
};

std::string read_input() { return {std::istreambuf_iterator<char>(std::cin), {}}; }

void run_script(redco::ScriptEngine& engine, const Arguments& args) {
  for (const auto& module : args.modules) engine.run_string("require '" + module + "'", "-l");
  for (const auto& chunk : args.chunks) engine.run_string(chunk, "-e");
  if (args.script.empty()) return;
  std::vector<std::string> script_args(args.script.begin() + 1, args.script.end());
  if (args.script[0] == "-")
    engine.run_string(read_input(), "stdin", script_args);
  else
    engine.run_file(args.script[0], script_args);
}

// With -i a prompt also follows an error, so that the user can inspect the state.
void run(redco::ScriptEngine& engine, redco::Console& console, const Arguments& args) {
  try {
    run_script(engine, args);
  } catch (const redco::ScriptError& error) {
    // With several processes the others may be waiting for this one.
    if (!args.interactive || redco::shares_prompt() ||
        error.kind() == redco::ScriptError::Kind::stopped)
      throw;
    report_end(code_of(error.kind()), error.what(), error.traceback());
  }
  if (args.has_prompt()) redco::run_prompt(engine, console);
}

// Returns the exit code.
int run_program(int argc, char** argv) {
  prctl(PR_SET_NAME, "redco-lua");  // "exe" after a start through /proc/self/exe
  silence_log();
  redco::show_notices([](const std::string& text) {
    std::fprintf(stderr, "redco-lua: %s\n", redco::printable(text).c_str());
  });
  CLI::App app(
      "Runs a Lua script that trains or runs models: redco-lua [OPTIONS] [FILE [ARGS]]\n"
      "Without FILE it starts a prompt. FILE - is standard input.\n"
      "Flags after FILE are passed to the script.",
      "redco-lua");
  Arguments args;
  app.add_option("-e", args.chunks, "Run this Lua code")
      ->type_name("CODE")
      ->allow_extra_args(false);
  app.add_option("-l", args.modules, "Load this module")
      ->type_name("MODULE")
      ->allow_extra_args(false);
  app.add_flag("-i", args.interactive, "Start a prompt after FILE, with its globals");
  app.add_flag("--no-strict,--no_strict", args.no_strict, "Let undeclared globals be nil");
  app.add_option("--nproc", args.nproc,
                 "Run FILE, or a prompt, in N processes of this machine, one per device")
      ->type_name("N")
      ->check(CLI::Range(int64_t(1), int64_t(1024)));
  bool names_secret = false;
  // These set the variables of the same meaning.
  for (const Place& each : places)
    app.add_option_function<std::string>(
           each.flag,
           [each, &names_secret](const std::string& value) {
             setenv(each.variable, value.c_str(), 1);
             if (each.variable != redco::secret_file_variable) return;
             names_secret = true;
             unsetenv(redco::secret_variable);
           },
           each.help)
        ->type_name(each.type);
  app.add_option("--max-restarts,--max_restarts", args.restarts.max,
                 "Restart FILE after a failure, at most N times")
      ->type_name("N")
      ->check(CLI::Range(int64_t(0), int64_t(1000000)));
  app.add_option("--min-processes,--min_processes", args.restarts.min_hosts,
                 "Restart with at least N machines if others do not return")
      ->type_name("N")
      ->check(CLI::Range(int64_t(1), int64_t(1000000)));
  app.add_option("--rejoin-timeout,--rejoin_timeout", args.rejoin_timeout,
                 "How long to wait for the others; default: 60")
      ->type_name("SECONDS")
      ->check(CLI::Range(int64_t(1), int64_t(1000000)));
  app.add_flag("--report-sharding,--report_sharding", args.report_sharding,
               "Report at the end which data moved between processes, and how to move less");
  redco::PlotCommand plot;
  plot.add_to(app);
  redco::PlanCommand plan;
  plan.add_to(app);
  std::string shell;
  app.add_option("--completion", shell, "Print a completion script for this shell")
      ->type_name("SHELL")
      ->check(CLI::IsMember(redco::completed_shells()));
  app.footer(
      "Exit codes: 0, 1 (the script or its data failed), 2 (wrong usage), 130 (interrupted), 128 + "
      "another signal.");
  app.set_version_flag("--version", "redco-lua " REDCO_VERSION);
  app.prefix_command();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? fine : wrong_usage;
  }
  if (!shell.empty()) {
    std::cout << redco::completion(app, shell);
    return fine;
  }
  args.script = app.remaining();
  if (!args.script.empty() && args.script[0].size() > 1 && args.script[0][0] == '-') {
    std::fprintf(stderr, "redco-lua: there is no flag %s; see redco-lua --help\n",
                 args.script[0].c_str());
    return wrong_usage;
  }
  try {
    const bool has_workers = args.nproc > 1 || args.restarts.max > 0;
    const bool calibrates = plan.is_given() && plan.is_calibration() && args.nproc > 1;
    if (plan.is_given() && has_workers && !calibrates)
      throw redco::UsageError(
          "plan runs in one process, without --nproc and --max-restarts: --devices N and --servers "
          "say where the training would run");
    if (args.restarts.min_hosts > 0 && !has_workers)
      throw redco::UsageError("--min-processes is for restarts: it needs --max-restarts N");
    // A run on one machine needs no secret, but whoever names one wants it to be there.
    if (names_secret) (void)redco::find_run_secret();
    if (calibrates) args.script = plan.calibration_words();
    redco::keep_to_cores();
    if (has_workers) return run_workers(args);
    const redco::Processes processes = redco::find_processes();
    draw_alike(processes);
    if (processes.rank == 0) redco::watch_for_busy_cores();
#if !defined(__SANITIZE_ADDRESS__)  // AddressSanitizer checks only its own allocator's memory
    redco::use_tensor_heap();
#endif
    redco::guard_mapped_files();
    auto terminal = redco::make_terminal();
    redco::ScriptEngine engine({.strict = !args.no_strict && !args.has_prompt(),
                                .console = terminal,
                                .exits_process = true,
                                .records_sharding = args.report_sharding});
    std::optional<ReportAtEnd> report;
    if (args.report_sharding) report.emplace(engine, *terminal);
    running = &engine;
    std::signal(SIGINT, on_interrupt);
    std::signal(SIGALRM, on_alarm);
    redco::set_forced_stop(force_end);
    for (int signal : {SIGTERM, SIGUSR1}) std::signal(signal, on_stop);
    if (!plot.workdir.empty())
      plot.run(engine);
    else if (plan.is_given())
      plan.run(engine);
    else
      run(engine, *terminal, args);
    return fine;
  } catch (const redco::ScriptError& error) {
    if (error.kind() == redco::ScriptError::Kind::stopped) {
      std::fprintf(stderr, "redco-lua: %s\n", error.what());
      return 128 + error.signal();
    }
    return report_end(code_of(error.kind()), error.what(), error.traceback());
  } catch (const redco::UsageError& error) {
    return report_end(wrong_usage, error.what());
  } catch (const std::exception& error) {
    return report_end(script_failed, error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  redco::open_standard_files();
  redco::check_output_at_exit();
  int code = run_program(argc, argv);
#if !defined(__SANITIZE_ADDRESS__)
  // A third of a short run would be the destruction of LibTorch's tables, which nobody needs.
  std::cout.flush();
  std::fflush(nullptr);
  std::quick_exit(redco::checked_exit_code(code));
#endif
  return code;
}
