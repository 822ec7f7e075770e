// Worker processes that share their launcher's start.

#include "prepared_workers.h"

#include <redco/detail/last_error.h>
#include <redco/error.h>

#include <ATen/Parallel.h>

#include <dirent.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace redco {

namespace {

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

// Closes the descriptors that the start of a program would close.
void close_as_exec() {
  std::vector<int> open;
  DIR* folder = opendir("/proc/self/fd");
  while (dirent* each = folder == nullptr ? nullptr : readdir(folder))
    if (each->d_name[0] != '.') open.push_back(std::atoi(each->d_name));
  if (folder != nullptr) closedir(folder);
  for (int each : open)
    if (int flags = fcntl(each, F_GETFD); flags >= 0 && (flags & FD_CLOEXEC) != 0) close(each);
}

// Waits for the environment of this process and adds it. Ends the process if there will be none.
void receive_environment(int from) {
  std::string text;
  char piece[4096];
  for (ssize_t n; (n = read(from, piece, sizeof(piece))) != 0;) {
    if (n > 0)
      text.append(piece, size_t(n));
    else if (errno != EINTR)
      _exit(127);
  }
  if (text.empty()) _exit(127);
  for (size_t begin = 0; begin < text.size();) {
    std::string entry = text.c_str() + begin;
    begin += entry.size() + 1;
    const size_t equal = entry.find('=');
    std::string name = entry.substr(0, equal), value = entry.substr(equal + 1);
    setenv(name.c_str(), value.c_str(), 1);
    // OpenMP has read it when the launcher started.
    if (name == "OMP_NUM_THREADS") at::set_num_threads(std::stoi(value));
  }
}

}  // namespace

bool fork_worker(bool has_prompt, WorkerProcess& worker) {
  auto [output, to_output] = make_pipe();
  auto [error, to_error] = make_pipe();
  auto [prompt, to_prompt] = has_prompt ? make_sockets() : std::pair(-1, -1);
  const pid_t launcher = getpid();
  const pid_t process = fork();
  require(process >= 0, "cannot start a process: ", LastError{});
  if (process == 0) {
    // The terminal's signals go to the launcher, which hands them on.
    if (!has_prompt) setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(127);
    dup2(has_prompt ? to_prompt : open("/dev/null", O_RDONLY | O_CLOEXEC),
         has_prompt ? prompt_descriptor : STDIN_FILENO);
    dup2(to_output, STDOUT_FILENO);
    dup2(to_error, STDERR_FILENO);
    return true;
  }
  if (!has_prompt) setpgid(process, process);
  for (int each : {to_output, to_error, to_prompt})
    if (each >= 0) close(each);
  for (int each : {output, error, prompt})
    if (each >= 0) fcntl(each, F_SETFL, O_NONBLOCK);
  worker = {process, output, error, prompt};
  return false;
}

PreparedWorkers::PreparedWorkers(int64_t n, bool share_prompt) {
  // What this process has not written yet must not be written by each of them.
  std::fflush(nullptr);
  // Pipes must not take the number of the prompt's descriptor.
  if (share_prompt && fcntl(prompt_descriptor, F_GETFD) < 0) {
    int any = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dup3(any, prompt_descriptor, O_CLOEXEC);
  }
  for (int64_t i = 0; i < n; ++i) {
    auto [environment, to_environment] = make_sockets();
    WorkerProcess worker;
    is_worker_ = fork_worker(share_prompt && i == 0, worker);
    if (is_worker_) {
      receive_environment(environment);
      close_as_exec();
      waiting_.clear();
      return;
    }
    close(environment);
    waiting_.push_back({worker, to_environment});
  }
}

PreparedWorkers::~PreparedWorkers() {
  for (const Waiting& each : waiting_) {
    kill(each.worker.process, SIGKILL);
    waitpid(each.worker.process, nullptr, 0);
  }
}

WorkerProcess PreparedWorkers::start(const Variables& variables) {
  Waiting next = waiting_.front();
  waiting_.erase(waiting_.begin());
  std::string text;
  for (const auto& [name, value] : variables) text += name + "=" + value + '\0';
  // If the process has ended, this is reported when it is waited for.
  (void)!send(next.environment, text.data(), text.size(), MSG_NOSIGNAL);
  // The processes that were forked later have copies of this socket, too.
  shutdown(next.environment, SHUT_WR);
  close(next.environment);
  return next.worker;
}

}  // namespace redco
