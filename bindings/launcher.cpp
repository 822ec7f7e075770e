#include "launcher.h"

#include "worker_output.h"

#include <redco/error.h>
#include <redco/run_store.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

namespace redco {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// After the first failure the others have so long to notice it and end by themselves, then so long
// to end when asked.
constexpr milliseconds time_to_notice = milliseconds(1000);
constexpr milliseconds time_to_end = milliseconds(3000);

struct Worker {
  int64_t rank = 0;
  pid_t process = 0;
  std::vector<std::unique_ptr<WorkerOutput>> outputs;
  std::optional<int> status = std::nullopt;  // how it ended
  bool asked = false;                        // whether it was asked to end before it had
};

int exit_code(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::string describe(int status) {
  if (!WIFSIGNALED(status)) return "ended with exit code " + std::to_string(WEXITSTATUS(status));
  return "was ended by signal " + std::to_string(WTERMSIG(status)) + " (" +
         strsignal(WTERMSIG(status)) + ")" +
         // Gloo ends a process whose peer sends what another collective would.
         (WTERMSIG(status) == SIGABRT
              ? "; if its lines tell of a collective mismatch, REDCO_CHECK_SPMD=1 names the calls"
              : "");
}

std::pair<int, int> make_pipe() {
  int ends[2];
  require(pipe2(ends, O_CLOEXEC) == 0, "cannot make a pipe: ", std::strerror(errno));
  return {ends[0], ends[1]};
}

class Launch {
 public:
  Launch(int64_t n_workers, const std::vector<std::string>& command);
  int run();

 private:
  void start(Worker& worker);
  void wait_for_something();
  void on_signals();
  void on_exits();
  void stop_in_time();
  void send(int signal);
  void pump();
  bool all_ended() const;
  int report() const;

  const std::vector<std::string>& command_;
  sigset_t signals_;
  int signal_source_ = -1;
  std::unique_ptr<RunStore> store_;
  std::vector<Worker> workers_;
  const Worker* first_failed_ = nullptr;
  int forwarded_ = 0;    // the signal that asked this process to end
  int next_signal_ = 0;  // once one has failed, what the others will get, and when
  steady_clock::time_point when_;
};

Launch::Launch(int64_t n_workers, const std::vector<std::string>& command)
    : command_(command), workers_(static_cast<size_t>(n_workers)) {
  // Before any thread starts: none of them shall take a signal.
  sigemptyset(&signals_);
  for (int each : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals_, each);
  sigprocmask(SIG_BLOCK, &signals_, nullptr);
  signal_source_ = signalfd(-1, &signals_, SFD_CLOEXEC | SFD_NONBLOCK);
  require(signal_source_ >= 0, "cannot receive signals: ", std::strerror(errno));
  store_ = RunStore::open();
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    workers_[rank].rank = static_cast<int64_t>(rank);
    start(workers_[rank]);
  }
}

// This process's environment with what a worker needs.
std::vector<std::string> environment(int64_t rank, int64_t size, int64_t port) {
  auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  std::map<std::string, std::string> variables = {
      {"RANK", std::to_string(rank)},
      {"LOCAL_RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(size)},
      {"LOCAL_WORLD_SIZE", std::to_string(size)},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(port)},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
  };
  if (std::getenv("OMP_NUM_THREADS") == nullptr)
    variables["OMP_NUM_THREADS"] = std::to_string(std::max<int64_t>(1, cores / size));
  std::vector<std::string> entries;
  for (char** each = environ; *each != nullptr; ++each) {
    std::string entry = *each;
    if (!variables.contains(entry.substr(0, entry.find('=')))) entries.push_back(entry);
  }
  for (const auto& [name, value] : variables) entries.push_back(name + "=" + value);
  return entries;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> result;
  for (auto& word : words) result.push_back(word.data());
  result.push_back(nullptr);
  return result;
}

void Launch::start(Worker& worker) {
  auto variables = environment(worker.rank, static_cast<int64_t>(workers_.size()), store_->port());
  auto words = command_;
  auto args = pointers(words), env = pointers(variables);
  auto [out, to_out] = make_pipe();
  auto [err, to_err] = make_pipe();
  pid_t launcher = getpid();
  pid_t process = fork();
  require(process >= 0, "cannot start a process: ", std::strerror(errno));
  if (process == 0) {
    // Only what is safe in a copy of a process with threads.
    setpgid(0, 0);  // the terminal's signals go to the launcher alone, which hands them on
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(127);
    int nothing = open("/dev/null", O_RDONLY);
    dup2(nothing, STDIN_FILENO);
    dup2(to_out, STDOUT_FILENO);
    dup2(to_err, STDERR_FILENO);
    sigprocmask(SIG_UNBLOCK, &signals_, nullptr);
    execve("/proc/self/exe", args.data(), env.data());
    _exit(127);
  }
  setpgid(process, process);
  worker.process = process;
  close(to_out);
  close(to_err);
  std::string prefix = "[" + std::to_string(worker.rank) + "] ";
  for (auto [from, to] : {std::pair(out, STDOUT_FILENO), std::pair(err, STDERR_FILENO)}) {
    fcntl(from, F_SETFL, O_NONBLOCK);
    worker.outputs.push_back(std::make_unique<WorkerOutput>(from, to, prefix));
  }
}

int Launch::run() {
  while (!all_ended()) {
    wait_for_something();
    on_signals();
    pump();
    on_exits();
    stop_in_time();
  }
  pump();
  for (auto& worker : workers_) worker.outputs.clear();
  return report();
}

bool Launch::all_ended() const {
  return std::ranges::all_of(workers_, [](const Worker& w) { return w.status.has_value(); });
}

void Launch::wait_for_something() {
  std::vector<pollfd> sources{{signal_source_, POLLIN, 0}};
  for (auto& worker : workers_)
    for (auto& output : worker.outputs) sources.push_back({output->descriptor(), POLLIN, 0});
  int time = -1;
  if (next_signal_ != 0) {
    auto left = std::chrono::ceil<milliseconds>(when_ - steady_clock::now()).count();
    time = static_cast<int>(std::max<int64_t>(0, left));
  }
  poll(sources.data(), sources.size(), time);
}

void Launch::pump() {
  for (auto& worker : workers_)
    std::erase_if(worker.outputs, [](auto& output) { return !output->pump(); });
}

void Launch::on_signals() {
  signalfd_siginfo info;
  while (read(signal_source_, &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo == SIGCHLD) continue;
    forwarded_ = static_cast<int>(info.ssi_signo);
    send(forwarded_);
  }
}

void Launch::on_exits() {
  for (auto& worker : workers_) {
    int status = 0;
    if (worker.status || waitpid(worker.process, &status, WNOHANG) <= 0) continue;
    worker.status = status;
    kill(-worker.process, SIGKILL);  // what it started itself
    if (status == 0 || first_failed_ != nullptr) continue;
    first_failed_ = &worker;
    store_->note_failure({worker.rank, describe(status)});
    next_signal_ = SIGTERM;
    when_ = steady_clock::now() + time_to_notice;
  }
}

void Launch::stop_in_time() {
  if (next_signal_ == 0 || steady_clock::now() < when_) return;
  for (auto& worker : workers_) worker.asked = worker.asked || !worker.status;
  send(next_signal_);
  send(SIGCONT);  // a stopped process ends only when it goes on
  next_signal_ = SIGKILL;
  when_ = steady_clock::now() + time_to_end;
}

void Launch::send(int signal) {
  for (auto& worker : workers_)
    if (!worker.status) kill(-worker.process, signal);
}

// Who failed first is what the store says: a worker notes its own failure, or that of one it
// misses, before it ends.
int Launch::report() const {
  if (first_failed_ == nullptr) return 0;
  if (forwarded_ != 0) return 128 + forwarded_;
  RunStore::Failure failure = store_->failure().value();
  const Worker& culprit = workers_[static_cast<size_t>(failure.rank)];
  int own = exit_code(*culprit.status);
  std::fprintf(stderr, "redco-lua: process %ld of %zu failed first: %s\n", failure.rank,
               workers_.size(), failure.text.c_str());
  return own != 0 && !culprit.asked ? own : exit_code(*first_failed_->status);
}

}  // namespace

int launch(int64_t n_workers, const std::vector<std::string>& command) {
  return Launch(n_workers, command).run();
}

}  // namespace redco
