// The program, for tests that start it a thousand times: its process comes from the fork server,
// which has LibTorch loaded. Without a server, and where the server refuses, it starts the program.
//     redco-lua ARGUMENTS              what the program does with them
//     redco-lua --start-fork-server    starts a server, which ends when this process' parent does
// REDCO_FORK_SERVER=off and REDCO_TEST_FULL=1 start the program.

#include "request.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

namespace {

using fork_server::Answer;
using fork_server::Request;

constexpr const char* program = REDCO_PROGRAM;

int server = -1;

void fail(const char* action) {
  std::perror(action);
  std::exit(1);
}

std::vector<int> open_descriptors() {
  std::vector<int> result;
  DIR* folder = opendir("/proc/self/fd");
  while (dirent* each = folder == nullptr ? nullptr : readdir(folder))
    if (each->d_name[0] != '.') result.push_back(std::atoi(each->d_name));
  if (folder == nullptr) return result;
  std::erase(result, dirfd(folder));
  closedir(folder);
  return result;
}

bool is_off() {
  const char* wish = std::getenv("REDCO_FORK_SERVER");
  return std::getenv("REDCO_TEST_FULL") != nullptr ||
         (wish != nullptr && std::strcmp(wish, "off") == 0);
}

bool connect_to_server() {
  server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  auto [address, size] = fork_server::address(program);
  return connect(server, reinterpret_cast<sockaddr*>(&address), size) == 0;
}

// The state of this process, in which the signals of `blocked` are to be blocked.
Request describe(const std::vector<int>& descriptors, const sigset_t& blocked) {
  Request result = {};
  std::copy(descriptors.begin(), descriptors.end(), result.descriptors);
  for (int i = 0; i < RLIM_NLIMITS; ++i) getrlimit(__rlimit_resource(i), &result.limits[i]);
  for (int i = 1; i < 64; ++i) {
    struct sigaction action;
    if (sigaction(i, nullptr, &action) == 0 && action.sa_handler == SIG_IGN)
      result.ignored |= uint64_t{1} << i;
    if (sigismember(&blocked, i) == 1) result.blocked |= uint64_t{1} << i;
  }
  result.file_mask = umask(0);
  umask(result.file_mask);
  fork_server::read_namespaces(result.namespaces);
  return result;
}

bool send_request(Request& request, const std::string& words, const std::vector<int>& descriptors) {
  std::vector<char> control(CMSG_SPACE(descriptors.size() * sizeof(int)));
  iovec part = {&request, sizeof(request)};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size() * sizeof(int));
  return sendmsg(server, &message, MSG_NOSIGNAL) == ssize_t(sizeof(request)) &&
         send(server, words.data(), words.size(), MSG_NOSIGNAL) == ssize_t(words.size());
}

// Asks for a process like this one. Returns false if there is no server or it refuses.
bool ask(char** arguments, char** variables, const sigset_t& blocked) {
  std::vector<int> descriptors = open_descriptors();
  if (descriptors.size() > fork_server::most_descriptors) return false;
  for (int each : descriptors)
    if (isatty(each) != 0) return false;  // a terminal belongs to one session
  const int folder = open(".", O_PATH | O_CLOEXEC);
  struct stat found;
  if (folder < 0 || fstat(folder, &found) != 0 || found.st_nlink == 0) return false;
  if (!connect_to_server()) return false;

  Request request = describe(descriptors, blocked);
  std::string words;
  for (char** each = arguments; *each != nullptr; ++each, ++request.n_arguments)
    words.append(*each, std::strlen(*each) + 1);
  for (char** each = variables; *each != nullptr; ++each)
    words.append(*each, std::strlen(*each) + 1);
  request.n_bytes = uint32_t(words.size());
  descriptors.insert(descriptors.begin(), folder);
  Answer answer = Answer::refused;
  return send_request(request, words, descriptors) && recv(server, &answer, 1, 0) == 1 &&
         answer == Answer::started;
}

void forward(int signal) {
  const char byte = char(signal);
  (void)!send(server, &byte, 1, MSG_NOSIGNAL);
}

// Ends as the process does.
[[noreturn]] void wait(const sigset_t& blocked) {
  struct sigaction action = {};
  action.sa_handler = forward;
  action.sa_flags = SA_RESTART;
  for (int each : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGCONT, SIGTSTP})
    sigaction(each, &action, nullptr);
  sigprocmask(SIG_SETMASK, &blocked, nullptr);
  int status = 127 << 8;
  (void)!recv(server, &status, sizeof(status), MSG_WAITALL);
  if (!WIFSIGNALED(status)) _exit(WEXITSTATUS(status));
  const rlimit no_core = {};
  setrlimit(RLIMIT_CORE, &no_core);
  std::signal(WTERMSIG(status), SIG_DFL);
  std::raise(WTERMSIG(status));
  _exit(128 + WTERMSIG(status));
}

int start_server() {
  const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
  auto [address, size] = fork_server::address(program);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0) {
    if (errno == EADDRINUSE) return 0;  // other tests of this program run
    fail("fork server: bind");
  }
  if (listen(listener, 64) != 0) fail("fork server: listen");
  const int parent = int(syscall(SYS_pidfd_open, getppid(), 0));
  if (parent < 0) {  // an old kernel, or a container
    std::perror("no fork server, tests take longer: pidfd_open");
    return 0;
  }
  fcntl(parent, F_SETFD, 0);
  const int nowhere = open("/dev/null", O_RDWR);
  dup2(nowhere, STDIN_FILENO);  // tests may run in a terminal
  if (fork() != 0) {
    char* arguments[] = {const_cast<char*>(program), const_cast<char*>("--version"), nullptr};
    sigset_t none;
    sigemptyset(&none);
    if (!ask(arguments, environ, none)) fail("fork server: no process");
    wait(none);
  }
  setsid();
  for (int each : {STDOUT_FILENO, STDERR_FILENO}) dup2(nowhere, each);
  setenv("LD_PRELOAD", FORK_SERVER_LIBRARY, 1);
  setenv("REDCO_FORK_SERVER", (std::to_string(listener) + " " + std::to_string(parent)).c_str(), 1);
  // Room for the arguments of the processes, which /proc/PID/cmdline shows.
  const std::string room(16384, ' ');
  execl(program, program, room.c_str(), nullptr);
  _exit(127);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--start-fork-server") == 0) return start_server();
  if (!is_off()) {
    // A signal that comes meanwhile is for the process, too.
    sigset_t all, blocked;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &blocked);
    if (ask(argv, environ, blocked)) wait(blocked);
    sigprocmask(SIG_SETMASK, &blocked, nullptr);
  }
  execv(program, argv);
  fail(program);
}
