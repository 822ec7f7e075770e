// The program redco-lua: command line, signals and exit codes.

#include "busy_cores.h"
#include "command_line.h"
#include "error_file.h"
#include "launcher.h"
#include "prompt.h"
#include "shared_prompt.h"
#include "standard_files.h"
#include "terminal.h"
#include "workarounds/is_off.h"

#include <redco/detail/cores.h>
#include <redco/detail/forced_stop.h>
#include <redco/detail/notices.h>
#include <redco/detail/printable.h>
#include <redco/error.h>
#include <redco/mapped_files.h>
#include <redco/mesh.h>
#include <redco/run_log.h>
#include <redco/script_engine.h>
#include <redco/stop.h>
#include <redco/tensor_heap.h>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Logging.h>

#include <sys/prctl.h>
#include <unistd.h>
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

redco::ScriptEngine* script_engine = nullptr;

// How long the script may take to notice an interrupt: a compiled Lua loop never does.
constexpr unsigned seconds_to_hear = 4;

// The first Ctrl-C ends the running step; a second one ends the program.
void interrupt_script(int) {
  std::signal(SIGINT, SIG_DFL);
  alarm(seconds_to_hear);
  redco::request_interrupt();  // for waits outside Lua
  script_engine->interrupt();
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

int run_workers(const redco::CommandLine& line) {
  const redco::Arguments& args = line.args();
  bool share_prompt = line.has_prompt();
  if (!line.script().empty() && line.script()[0] == "-")
    throw redco::UsageError("--nproc needs a FILE: several processes do not share their input");
  redco::Processes place = redco::find_processes();
  if (place.is_worker)
    throw redco::UsageError(
        "--nproc starts the processes of a run, and --max-restarts starts them again, but this "
        "one is already among several: RANK and WORLD_SIZE are set, and their launcher restarts");
  if (share_prompt && (args.max_restarts > 0 || place.size > 1))
    throw redco::UsageError(
        "--max-restarts needs a FILE, and so do several machines: a prompt is not restarted, and "
        "its processes are on one machine");
  if (args.min_processes > place.size)
    throw redco::UsageError("--min-processes counts machines: there are " +
                            std::to_string(place.size) + " (--n-processes), not " +
                            std::to_string(args.min_processes));
  redco::Restarts restarts{.max = args.max_restarts, .min_hosts = args.min_processes};
  restarts.next_meeting = std::chrono::seconds(args.rejoin_timeout);
  return redco::launch(place, args.nproc, restarts, line.worker_words(), share_prompt);
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
    case redco::ScriptError::Kind::out_of_instructions:
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

void run_script(redco::ScriptEngine& engine, const redco::CommandLine& line) {
  for (const auto& module : line.args().modules)
    engine.run_string("require '" + module + "'", "-l");
  for (const auto& chunk : line.args().chunks) engine.run_string(chunk, "-e");
  if (line.script().empty()) return;
  const std::string& file = line.script()[0];
  std::vector<std::string> script_args(line.script().begin() + 1, line.script().end());
  if (file == "-")
    engine.run_string(read_input(), "stdin", script_args);
  else
    engine.run_file(file, script_args);
}

// With -i a prompt also follows an error, so that the user can inspect the state.
void run_script_and_prompt(redco::ScriptEngine& engine, redco::Console& console,
                           const redco::CommandLine& line) {
  try {
    run_script(engine, line);
  } catch (const redco::ScriptError& error) {
    // With several processes the others may be waiting for this one.
    if (!line.args().interactive || redco::shares_prompt() ||
        error.kind() == redco::ScriptError::Kind::stopped)
      throw;
    report_end(code_of(error.kind()), error.what(), error.traceback());
  }
  if (line.has_prompt()) redco::run_prompt(engine, console);
}

// Settings that must be made before the first tensor.
void prepare_process() {
  const redco::Processes processes = redco::find_processes();
  draw_alike(processes);
  if (processes.rank == 0) redco::watch_for_busy_cores();
#if !defined(__SANITIZE_ADDRESS__)  // AddressSanitizer checks only its own allocator's memory
  if (!redco::is_off(environ, "tensor_heap")) redco::use_tensor_heap();
#endif
  redco::guard_mapped_files();
}

void handle_signals(redco::ScriptEngine& engine) {
  script_engine = &engine;
  std::signal(SIGINT, interrupt_script);
  std::signal(SIGALRM, on_alarm);
  redco::set_forced_stop(force_end);
  for (int signal : {SIGTERM, SIGUSR1}) std::signal(signal, on_stop);
}

// Runs what the command line asks of this process.
void run_here(const redco::CommandLine& line) {
  prepare_process();
  auto terminal = redco::make_terminal();
  const bool is_lax = line.args().no_strict || line.has_prompt() || line.has_command();
  redco::ScriptEngine engine({.strict = !is_lax,
                              .console = terminal,
                              .exits_process = true,
                              .reports_sharding = line.args().report_sharding});
  std::optional<ReportAtEnd> report;
  if (line.args().report_sharding) report.emplace(engine, *terminal);
  handle_signals(engine);
  if (line.plot().is_given())
    line.plot().run(engine);
  else if (line.plan().is_given())
    line.plan().run(engine);
  else if (line.check_command().is_given())
    line.check_command().run(engine);
  else if (line.model().is_given())
    line.model().run(engine);
  else
    run_script_and_prompt(engine, *terminal, line);
}

int run_or_launch(const redco::CommandLine& line) {
  line.check();
  redco::keep_to_cores();
  if (line.is_launcher()) return run_workers(line);
  run_here(line);
  return fine;
}

// Returns the exit code.
int run_program(int argc, char** argv) {
  prctl(PR_SET_NAME, "redco-lua");  // "exe" after a start through /proc/self/exe
  silence_log();
  redco::show_notices([](const std::string& text) {
    std::fprintf(stderr, "redco-lua: %s\n", redco::printable(text).c_str());
  });
  redco::CommandLine line;
  if (auto code = line.parse(argc, argv)) return *code;
  try {
    return run_or_launch(line);
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
  // Destroying LibTorch's tables would take a third of a short run, for no use.
  std::cout.flush();
  std::fflush(nullptr);
  std::quick_exit(redco::checked_exit_code(code));
#endif
  return code;
}
