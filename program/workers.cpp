#include "workers.h"

#include <redco/error.h>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace redco {

namespace {

std::pair<int, int> make_pipe() {
  int ends[2];
  require(pipe2(ends, O_CLOEXEC) == 0, "cannot make a pipe: ", std::strerror(errno));
  return {ends[0], ends[1]};
}

// This process's environment with what is added.
std::vector<std::string> environment(const Workers::Variables& added) {
  std::vector<std::string> entries;
  for (char** each = environ; *each != nullptr; ++each) {
    std::string entry = *each;
    if (!added.contains(entry.substr(0, entry.find('=')))) entries.push_back(entry);
  }
  for (const auto& [name, value] : added) entries.push_back(name + "=" + value);
  return entries;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> result;
  for (auto& word : words) result.push_back(word.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace

int exit_code(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::string describe_end(int status) {
  if (!WIFSIGNALED(status)) return "ended with exit code " + std::to_string(WEXITSTATUS(status));
  return "was ended by signal " + std::to_string(WTERMSIG(status)) + " (" +
         strsignal(WTERMSIG(status)) + ")" +
         // Gloo ends a process whose peer sends what another collective would.
         (WTERMSIG(status) == SIGABRT
              ? "; if its lines tell of a collective mismatch, REDCO_CHECK_SPMD=1 names the calls"
              : "");
}

Workers::Workers(const std::vector<std::string>& command, const std::vector<Variables>& variables,
                 const sigset_t& blocked) {
  for (const auto& each : variables) start(command, each, blocked);
}

Workers::~Workers() {
  send(SIGKILL);
  for (auto& worker : workers_)
    if (!worker.has_ended) waitpid(worker.process, nullptr, 0);
}

void Workers::start(const std::vector<std::string>& command, const Variables& variables,
                    const sigset_t& blocked) {
  auto entries = environment(variables);
  auto words = command;
  auto args = pointers(words), env = pointers(entries);
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
    sigprocmask(SIG_UNBLOCK, &blocked, nullptr);
    execve("/proc/self/exe", args.data(), env.data());
    _exit(127);
  }
  setpgid(process, process);
  close(to_out);
  close(to_err);
  Worker& worker = workers_.emplace_back();
  worker.rank = std::stoll(variables.at("RANK"));
  worker.process = process;
  std::string prefix = "[" + variables.at("RANK") + "] ";
  for (auto [from, to] : {std::pair(out, STDOUT_FILENO), std::pair(err, STDERR_FILENO)}) {
    fcntl(from, F_SETFL, O_NONBLOCK);
    worker.outputs.push_back(std::make_unique<WorkerOutput>(from, to, prefix));
  }
}

void Workers::add_sources(std::vector<pollfd>& sources) const {
  for (const auto& worker : workers_)
    for (const auto& output : worker.outputs) sources.push_back({output->descriptor(), POLLIN, 0});
}

void Workers::pump() {
  for (auto& worker : workers_)
    std::erase_if(worker.outputs, [](auto& output) { return !output->pump(); });
}

std::vector<Workers::Ended> Workers::take_ended() {
  std::vector<Ended> ended;
  for (auto& worker : workers_) {
    int status = 0;
    if (worker.has_ended || waitpid(worker.process, &status, WNOHANG) <= 0) continue;
    worker.has_ended = true;
    kill(-worker.process, SIGKILL);  // what it started itself
    ended.push_back({worker.rank, status, worker.was_asked});
  }
  return ended;
}

bool Workers::all_ended() const {
  return std::ranges::all_of(workers_, [](const Worker& worker) { return worker.has_ended; });
}

void Workers::send(int signal) {
  for (auto& worker : workers_) {
    if (worker.has_ended) continue;
    worker.was_asked = true;
    kill(-worker.process, signal);
  }
}

}  // namespace redco
