// The worker processes of one host.

#include "workers.h"

#include "standard_files.h"

#include <redco/detail/last_error.h>
#include <redco/error.h>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

namespace redco {

namespace {

// Errors are ignored: if the reader is gone, other checks detect it.
void send_byte(int to) { (void)send(to, "", 1, MSG_NOSIGNAL); }

// Signals a process and, if it leads a group, the whole group.
void signal_all(pid_t process, bool leads_group, int signal) {
  kill(leads_group ? -process : process, signal);
}

// This process' environment with `added`.
std::vector<std::string> environment(const Variables& added) {
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

std::pair<int, int> make_pipe() {
  int ends[2];
  require(pipe2(ends, O_CLOEXEC) == 0, "cannot make a pipe: ", LastError{});
  return {ends[0], ends[1]};
}

std::pair<int, int> make_sockets() {
  int ends[2];
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0,
          "cannot make a pair of sockets: ", LastError{});
  return {ends[0], ends[1]};
}

// Makes the descriptor `to` refer to the file of `from`, also in the program that this process
// starts.
void give(int from, int to) {
  if (from == to)
    fcntl(to, F_SETFD, 0);
  else
    dup2(from, to);
}

// Starts this program with the words of `command`. The worker with the prompt keeps this process'
// standard input and process group, since only that group may read from the terminal. The launcher
// may have threads, so until the program starts, the new process calls only functions that are safe
// in a signal handler.
WorkerProcess start(const std::vector<std::string>& command, const Variables& variables,
                    const sigset_t& blocked, bool has_prompt) {
  auto entries = environment(variables);
  auto words = command;
  auto args = pointers(words), env = pointers(entries);
  auto [output, to_output] = make_pipe();
  auto [error, to_error] = make_pipe();
  auto [prompt, to_prompt] = has_prompt ? make_sockets() : std::pair(-1, -1);
  const pid_t launcher = getpid();
  const pid_t process = fork();
  require(process >= 0, "cannot start a process: ", LastError{});
  if (process == 0) {
    // The terminal's signals go to the launcher, which forwards them.
    if (!has_prompt) setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(127);
    if (!has_prompt) give(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    give(to_output, STDOUT_FILENO);
    give(to_error, STDERR_FILENO);
    // Done last, because one of the pipes may have the number of `prompt_descriptor`.
    if (has_prompt) give(to_prompt, prompt_descriptor);
    sigprocmask(SIG_UNBLOCK, &blocked, nullptr);
    execve("/proc/self/exe", args.data(), env.data());
    constexpr std::string_view text = "redco-lua: cannot start /proc/self/exe\n";
    write_all(STDERR_FILENO, text);
    _exit(127);
  }
  if (!has_prompt) setpgid(process, process);
  for (int each : {to_output, to_error, to_prompt})
    if (each >= 0) close(each);
  for (int each : {output, error, prompt})
    if (each >= 0) fcntl(each, F_SETFL, O_NONBLOCK);
  return {process, output, error, prompt};
}

}  // namespace

int exit_code(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::string describe_end(int status) {
  if (!WIFSIGNALED(status)) return "ended with exit code " + std::to_string(WEXITSTATUS(status));
  return "was ended by signal " + std::to_string(WTERMSIG(status)) + " (" +
         strsignal(WTERMSIG(status)) + ")";
}

Workers::Workers(const std::vector<std::string>& command, const std::vector<Variables>& variables,
                 const sigset_t& blocked, bool share_prompt)
    : share_prompt_(share_prompt) {
  for (int to : {STDOUT_FILENO, STDERR_FILENO}) joined_.emplace_back(to, variables.size());
  for (const auto& each : variables)
    add(start(command, each, blocked, share_prompt && workers_.empty()), each.at("RANK"));
}

Workers::~Workers() {
  send(SIGKILL);
  for (auto& worker : workers_)
    if (!worker.has_ended) waitpid(worker.process, nullptr, 0);
  for (auto& worker : workers_) worker.outputs.clear();
  for (auto& each : joined_) each.flush();
  if (prompt_ >= 0) close(prompt_);
}

void Workers::add(const WorkerProcess& started, const std::string& rank) {
  const size_t index = workers_.size();
  Worker& worker = workers_.emplace_back();
  worker.rank = std::stoll(rank);
  worker.process = started.process;
  worker.leads_group = started.prompt < 0;
  if (started.prompt >= 0) prompt_ = started.prompt;
  const std::string prefix = "[" + rank + "] ";
  for (auto [from, to] :
       {std::pair(started.output, STDOUT_FILENO), std::pair(started.error, STDERR_FILENO)}) {
    WorkerOutput::Take take = [to, prefix](std::string_view line) {
      write_line(to, prefix + std::string(line));
    };
    if (share_prompt_)
      take = [&joined = joined_[to == STDERR_FILENO], index](std::string_view line) {
        joined.add(index, line);
      };
    worker.outputs.push_back(std::make_unique<WorkerOutput>(from, std::move(take)));
  }
}

void Workers::add_sources(std::vector<pollfd>& sources) const {
  for (const auto& worker : workers_)
    for (const auto& output : worker.outputs) sources.push_back({output->descriptor(), POLLIN, 0});
  if (prompt_ >= 0) sources.push_back({prompt_, POLLIN, 0});
}

// Whether the worker with the prompt waits for an answer.
bool Workers::is_asked() {
  char question;
  ssize_t n = prompt_ < 0 ? -1 : read(prompt_, &question, 1);
  if (n == 0) close(std::exchange(prompt_, -1));  // it has ended
  return n == 1;
}

void Workers::pump() {
  // Read this before the output: all output of a turn is written before the request.
  bool is_asked = this->is_asked();
  for (auto& worker : workers_)
    std::erase_if(worker.outputs, [](auto& output) { return !output->pump(); });
  if (is_asked)
    for (auto& worker : workers_)
      for (auto& output : worker.outputs) output->end_line();
  auto now = JoinedOutput::Clock::now();
  for (auto& each : joined_)
    if (is_asked || (each.due() && *each.due() <= now)) each.flush();
  if (is_asked) send_byte(prompt_);
}

std::optional<JoinedOutput::Clock::time_point> Workers::due() const {
  auto out = joined_[0].due(), err = joined_[1].due();
  return out && err ? std::min(out, err) : out ? out : err;
}

std::vector<Workers::Ended> Workers::take_ended() {
  std::vector<Ended> ended;
  for (auto& worker : workers_) {
    int status = 0;
    if (worker.has_ended || waitpid(worker.process, &status, WNOHANG) <= 0) continue;
    worker.has_ended = true;
    if (worker.leads_group) kill(-worker.process, SIGKILL);  // processes that it started
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
    signal_all(worker.process, worker.leads_group, signal);
  }
}

void Workers::interrupt() {
  for (const auto& worker : workers_)
    if (!worker.has_ended) signal_all(worker.process, worker.leads_group, SIGINT);
}

}  // namespace redco
