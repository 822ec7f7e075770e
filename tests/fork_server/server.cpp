// Makes the program a fork server: loaded before all other libraries by LD_PRELOAD, it answers
// requests once the libraries are initialised, which is nearly all of the time of a start, and
// before `main`. Each process that it forks then runs `main`.

#include "request.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

namespace {

using fork_server::Answer;
using fork_server::Request;

struct Process {
  pid_t id;
  int descriptor, client;
};

struct Received {
  Request request;
  std::vector<int> descriptors;  // the folder's first
  std::vector<char> words;
};

// Libraries read these when they are loaded.
std::vector<std::string_view> read_at_start(const std::vector<char*>& variables) {
  std::vector<std::string_view> result;
  for (std::string_view each : variables)
    for (std::string_view prefix :
         {"LD_", "OMP_", "KMP_", "MKL_", "MALLOC", "TCMALLOC", "GLIBC_", "TORCH_", "DNNL_",
          "ONEDNN_", "CUDA_", "PYTORCH_", "GOMP_", "ATEN_"})
      if (each.starts_with(prefix)) result.push_back(each);
  std::sort(result.begin(), result.end());
  return result;
}

// Those of this process, but for the library that makes it a server.
std::vector<char*> own_variables() {
  std::vector<char*> result;
  for (char** each = environ; *each != nullptr; ++each)
    if (!std::string_view(*each).starts_with("LD_PRELOAD=")) result.push_back(*each);
  return result;
}

std::optional<Received> receive(int client) {
  Received result;
  char control[CMSG_SPACE((fork_server::most_descriptors + 1) * sizeof(int))];
  iovec part = {&result.request, sizeof(result.request)};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (recvmsg(client, &message, MSG_WAITALL | MSG_CMSG_CLOEXEC) != ssize_t(sizeof(Request)))
    return {};
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr) return {};
  const size_t n = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
  result.descriptors.resize(n);
  std::memcpy(result.descriptors.data(), CMSG_DATA(header), n * sizeof(int));
  result.words.resize(result.request.n_bytes);
  if (recv(client, result.words.data(), result.words.size(), MSG_WAITALL) !=
      ssize_t(result.words.size()))
    return {};
  return result;
}

std::vector<char*> split(std::vector<char>& words) {
  std::vector<char*> result;
  for (size_t i = 0; i < words.size(); i += std::strlen(&words[i]) + 1) result.push_back(&words[i]);
  return result;
}

// The start of the program adds this variable.
void add_as_start_does(std::vector<char*>& variables) {
  static char spins[] = "GOMP_SPINCOUNT=3000";
  const bool is_there = std::any_of(variables.begin(), variables.end(), [](std::string_view each) {
    return each.starts_with("GOMP_SPINCOUNT=");
  });
  if (!is_there) variables.push_back(spins);
}

bool has_own_namespaces(const Request& request) {
  uint64_t own[std::size(fork_server::namespace_kinds)];
  fork_server::read_namespaces(own);
  return std::equal(std::begin(own), std::end(own), request.namespaces);
}

// Gives this process the state of the client.
void become(const Received& from) {
  const Request& request = from.request;
  constexpr int above = 512;  // all descriptors of the server and of clients
  std::vector<int> moved;
  for (int each : from.descriptors) moved.push_back(fcntl(each, F_DUPFD, above));
  close_range(0, above - 1, 0);
  for (size_t i = 1; i < moved.size(); ++i) dup2(moved[i], request.descriptors[i - 1]);
  (void)!fchdir(moved[0]);
  close_range(above, ~0U, 0);
  umask(request.file_mask);
  for (int i = 0; i < RLIM_NLIMITS; ++i) setrlimit(__rlimit_resource(i), &request.limits[i]);
  sigset_t blocked;
  sigemptyset(&blocked);
  for (int i = 1; i < 64; ++i) {
    if ((request.ignored >> i & 1) != 0) std::signal(i, SIG_IGN);
    if ((request.blocked >> i & 1) != 0) sigaddset(&blocked, i);
  }
  sigprocmask(SIG_SETMASK, &blocked, nullptr);
}

// Shows the arguments in /proc/PID/cmdline, in the place of those of the server.
void show(const std::vector<char*>& arguments, char** own) {
  char* begin = own[0];
  const size_t size = size_t(own[1] + std::strlen(own[1]) - begin);
  std::memset(begin, 0, size);
  size_t done = 0;
  for (const char* each : arguments) {
    const size_t n = std::strlen(each) + 1;
    if (done + n > size) return;
    std::memcpy(begin + done, each, n);
    done += n;
  }
}

void answer(int client, Answer answer) { (void)!send(client, &answer, 1, MSG_NOSIGNAL); }

// Returns true in the new process, false in the server.
bool start(int client, std::vector<Process>& processes, int& argc, char**& argv) {
  static std::optional<Received> received;
  received = receive(client);
  if (!received) {
    close(client);
    return false;
  }
  static std::vector<char*> arguments, variables;
  arguments = split(received->words);
  variables.assign(arguments.begin() + received->request.n_arguments, arguments.end());
  arguments.resize(received->request.n_arguments);
  add_as_start_does(variables);
  const bool is_possible = has_own_namespaces(received->request) &&
                           read_at_start(variables) == read_at_start(own_variables());
  const pid_t process = is_possible ? fork() : -1;
  if (process == 0) {
    become(*received);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    show(arguments, argv);
    argc = int(arguments.size());
    arguments.push_back(nullptr);
    variables.push_back(nullptr);
    argv = arguments.data();
    environ = variables.data();
    return true;
  }
  answer(client, process > 0 ? Answer::started : Answer::refused);
  for (int each : received->descriptors) close(each);
  if (process > 0)
    processes.push_back({process, int(syscall(SYS_pidfd_open, process, 0)), client});
  else
    close(client);
  return false;
}

// Hands a client's signals on; a client that has been killed takes its process along.
void forward(const Process& process) {
  char signals[16];
  const ssize_t n = recv(process.client, signals, sizeof(signals), 0);
  for (ssize_t i = 0; i < n; ++i) kill(process.id, signals[i]);
  if (n == 0) kill(process.id, SIGKILL);
}

void report_end(const Process& process) {
  int status = 0;
  waitpid(process.id, &status, 0);
  (void)!send(process.client, &status, sizeof(status), MSG_NOSIGNAL);
  close(process.client);
  close(process.descriptor);
}

// Answers until the parent of the client that started this server ends. The processes of another
// ctest, which shares this server, may run longer.
void serve(int listener, int parent, int& argc, char**& argv) {
  std::vector<Process> processes;
  while (true) {
    std::vector<pollfd> events = {{parent, POLLIN, 0}, {listener, POLLIN, 0}};
    for (const Process& each : processes) {
      events.push_back({each.descriptor, POLLIN, 0});
      events.push_back({each.client, POLLIN, 0});
    }
    if (poll(events.data(), events.size(), -1) < 0) continue;
    if (events[0].revents != 0) {
      close(listener);
      listener = parent = -1;  // poll ignores them
    }
    for (size_t i = processes.size(); i-- > 0;) {
      if (events[2 + 2 * i].revents != 0) {
        report_end(processes[i]);
        processes.erase(processes.begin() + ptrdiff_t(i));
      } else if (events[3 + 2 * i].revents != 0) {
        forward(processes[i]);
      }
    }
    if (events[1].revents != 0)
      if (const int client = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC); client >= 0)
        if (start(client, processes, argc, argv)) return;
    if (listener < 0 && processes.empty()) _exit(0);
  }
}

using Main = int (*)(int, char**, char**);
using Hook = void (*)();

}  // namespace

// Of libc: what the first instructions of a program call.
extern "C" __attribute__((visibility("default"))) int __libc_start_main(
    Main main, int argc, char** argv, Hook init, Hook fini, Hook finish_loader, void* stack_end) {
  int listener, parent;
  const char* descriptors = std::getenv("REDCO_FORK_SERVER");
  if (descriptors != nullptr && std::sscanf(descriptors, "%d %d", &listener, &parent) == 2)
    serve(listener, parent, argc, argv);
  auto next = reinterpret_cast<decltype(&__libc_start_main)>(dlsym(RTLD_NEXT, "__libc_start_main"));
  return next(main, argc, argv, init, fini, finish_loader, stack_end);
}
