// Kills the processes of a run if its launcher is killed.

#include "guardian.h"

#include <redco/detail/last_error.h>
#include <redco/detail/run_secret.h>
#include <redco/error.h>

#include <dirent.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

namespace redco {

namespace {

// `entry` includes the zeros around it, so that it matches a whole entry.
bool has_entry(pid_t process, const std::string& entry) {
  std::ifstream file("/proc/" + std::to_string(process) + "/environ");
  std::string environment(1, '\0');
  environment.append(std::istreambuf_iterator<char>(file), {});
  return environment.find(entry) != std::string::npos;
}

// Returns whether there were any.
bool kill_all(const std::string& entry) {
  bool any = false;
  DIR* processes = opendir("/proc");
  while (dirent* each = processes == nullptr ? nullptr : readdir(processes)) {
    auto process = static_cast<pid_t>(std::atoi(each->d_name));
    if (process <= 0 || !has_entry(process, entry)) continue;
    any = kill(process, SIGKILL) == 0 || any;
  }
  if (processes != nullptr) closedir(processes);
  return any;
}

[[noreturn]] void guard(int from_launcher, const std::string& entry) {
  // Signals that end the launcher must not end this process.
  setsid();
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  prctl(PR_SET_NAME, "redco-guardian");
  // Hold none of the launcher's descriptors open: readers of its output wait for the end of file.
  dup2(from_launcher, STDIN_FILENO);
  for (int each : {STDOUT_FILENO, STDERR_FILENO}) dup2(open("/dev/null", O_WRONLY), each);
  close_range(STDERR_FILENO + 1, ~0U, 0);
  char well;
  ssize_t n;
  do n = read(STDIN_FILENO, &well, 1);
  while (n < 0 && errno == EINTR);
  // Repeat: some may start others meanwhile, and killed processes take a moment to disappear.
  constexpr int most_rounds = 200;
  for (int i = 0; n == 0 && i < most_rounds && kill_all(entry); ++i) usleep(10'000);
  _exit(0);
}

}  // namespace

Guardian::Guardian() : value_(random_secret().substr(0, 32)) {
  std::string entry = std::string(1, '\0') + variable + "=" + value_ + std::string(1, '\0');
  int ends[2];
  // Unlike a pipe, a socket lets `send` do without SIGPIPE: the guardian may have been killed.
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0,
          "cannot make a pair of sockets: ", LastError{});
  process_ = fork();
  require(process_ >= 0, "cannot start a process: ", LastError{});
  if (process_ == 0) {
    close(ends[1]);
    guard(ends[0], entry);
  }
  close(ends[0]);
  to_guardian_ = ends[1];
}

Guardian::~Guardian() {
  (void)!send(to_guardian_, "", 1, MSG_NOSIGNAL);
  close(to_guardian_);
  waitpid(process_, nullptr, 0);
}

}  // namespace redco
