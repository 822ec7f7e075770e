// The program's side of a Sandbox. It trusts nothing that the other process does.

#include <redco/sandbox.h>

#include "sandbox_channel.h"

#include <redco/detail/last_error.h>
#include <redco/run_log.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>

namespace redco {

namespace {

using Clock = std::chrono::steady_clock;
using sandbox::Channel;
using sandbox::Kind;
using sandbox::Message;

constexpr double seconds_to_start = 120;  // LibTorch may load from a slow disk

class Descriptor {
 public:
  explicit Descriptor(int fd, const char* what) : fd_(fd) {
    require(fd >= 0, "Sandbox: cannot make ", what, ": ", LastError{});
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor& operator=(Descriptor&&) = delete;
  operator int() const { return fd_; }

 private:
  int fd_;
};

std::pair<Descriptor, Descriptor> socket_pair() {
  int ends[2] = {-1, -1};
  (void)socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends);
  return {Descriptor(ends[0], "a pair of sockets"), Descriptor(ends[1], "a pair of sockets")};
}

// The size is sealed: if the other process shrank the memory, an access would be a bus error.
Descriptor shared_memory(size_t size) {
  Descriptor memory(memfd_create("redco-sandbox", MFD_CLOEXEC | MFD_ALLOW_SEALING),
                    "shared memory");
  require(ftruncate(memory, off_t(size)) == 0 &&
              fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0,
          "Sandbox: cannot make ", size, " bytes of shared memory: ", LastError{});
  return memory;
}

std::string default_program() {
  Dl_info here;
  require(dladdr(reinterpret_cast<void*>(&default_program), &here) != 0,
          "Sandbox: cannot find this library; set SandboxOptions::program");
  std::string library = here.dli_fname;
  return library.substr(0, library.rfind('/') + 1) + "redco/redco-sandbox";
}

// The process gets two descriptors and an environment without the program's secrets.
pid_t start(const std::string& program, const SandboxOptions& options, int socket, int memory) {
  // Duplicates above the final numbers, because those may be in use.
  Descriptor from_socket(fcntl(socket, F_DUPFD_CLOEXEC, 10), "a descriptor");
  Descriptor from_memory(fcntl(memory, F_DUPFD_CLOEXEC, 10), "a descriptor");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", O_RDWR, 0);
  posix_spawn_file_actions_adddup2(&actions, from_socket, sandbox::socket_fd);
  posix_spawn_file_actions_adddup2(&actions, from_memory, sandbox::memory_fd);
  posix_spawn_file_actions_addclosefrom_np(&actions, sandbox::memory_fd + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // A new session, so that Ctrl-C on the terminal reaches the program alone.
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);

  const char* libraries = std::getenv("LD_LIBRARY_PATH");
  const char* zone = std::getenv("TZ");
  // If TZ is set, the functions of time read the file of the zone only once.
  std::vector<std::string> environment = {
      "OMP_NUM_THREADS=1", "MKL_NUM_THREADS=1",
      "TZ=" + std::string(zone != nullptr ? zone : ":/etc/localtime")};
  if (libraries != nullptr) environment.push_back("LD_LIBRARY_PATH=" + std::string(libraries));
  std::vector<char*> environment_pointers;
  for (std::string& each : environment) environment_pointers.push_back(each.data());
  environment_pointers.push_back(nullptr);
  std::string arguments[] = {program, std::to_string(options.memory_bytes),
                             options.strict ? "strict" : ""};
  char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), nullptr};
  pid_t process = -1;
  int code = posix_spawn(&process, program.c_str(), &actions, &attributes, argv,
                         environment_pointers.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  require(code == 0, "Sandbox: cannot start ", program, ": ", std::strerror(code),
          "; SandboxOptions::program is the path of redco-sandbox");
  return process;
}

// Why a process ended, as the end of a sentence.
std::string cause(const siginfo_t& info, const SandboxOptions& options) {
  if (info.si_code == CLD_EXITED)
    return "it ended with exit code " + std::to_string(info.si_status);
  if (info.si_status == SIGXCPU)
    return "it took more than " + std::to_string(options.processor_seconds) +
           " s of processor time, see SandboxOptions::processor_seconds";
  if (info.si_status == SIGSYS)
    return "it made a system call that is not allowed, such as to open a file";
  return "signal " + std::to_string(info.si_status) + " (" + strsignal(info.si_status) + ")";
}

// The other process, from its start to its end.
class Process {
 public:
  Process(const std::string& program, const SandboxOptions& options)
      : Process(program, options, socket_pair(), shared_memory(options.message_bytes)) {}
  ~Process() { end(); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  Channel& channel() { return channel_; }

  /// The channel throws SandboxError if it waits longer.
  void set_deadline(double seconds) {
    seconds_ = seconds;
    deadline_ = Clock::now() + std::chrono::microseconds(int64_t(std::min(seconds, 1e9) * 1e6));
  }

  /// Lets the process use that much processor time from now on, rounded up.
  void limit_processor_time(int64_t seconds) {
    clockid_t clock;
    timespec used{};
    if (clock_getcpuclockid(pid_, &clock) == 0) clock_gettime(clock, &used);
    rlimit limit;
    if (prlimit(pid_, RLIMIT_CPU, nullptr, &limit) != 0) return;  // it has ended
    limit.rlim_cur = std::min(limit.rlim_max, rlim_t(used.tv_sec) + 1 + rlim_t(seconds));
    prlimit(pid_, RLIMIT_CPU, &limit, nullptr);
  }

  /// Any thread may call this.
  void kill() const noexcept { syscall(SYS_pidfd_send_signal, int(handle_), SIGKILL, nullptr, 0); }

  /// Gives the process this time to end, then kills it, and returns how it ended.
  siginfo_t end(int milliseconds = 0) {
    siginfo_t info{};
    if (std::exchange(has_ended_, true)) return info;
    pollfd ended{handle_, POLLIN, 0};
    poll(&ended, 1, milliseconds);
    kill();
    while (waitid(P_PIDFD, id_t(int(handle_)), &info, WEXITED) != 0 && errno == EINTR) {
    }
    return info;
  }

 private:
  Process(const std::string& program, const SandboxOptions& options,
          std::pair<Descriptor, Descriptor> ends, Descriptor memory)
      : socket_(std::move(ends.first)),
        channel_(socket_, memory, options.message_bytes, [this](short events) { wait(events); }),
        pid_(start(program, options, ends.second, memory)),
        // glibc has pidfd_open only since 2.36.
        handle_(int(syscall(SYS_pidfd_open, pid_, 0)), "a handle of a process") {}

  void wait(short events) {
    for (;;) {
      auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
      if (left <= 0) {
        std::ostringstream text;
        text << "it took more than " << seconds_ << " s, see SandboxOptions::seconds";
        throw SandboxError(text.str());
      }
      pollfd ready{socket_, events, 0};
      if (poll(&ready, 1, int(std::min<int64_t>(left, 1'000'000))) > 0) return;
    }
  }

  Descriptor socket_;
  Channel channel_;
  pid_t pid_;
  Descriptor handle_;
  double seconds_ = 0;
  Clock::time_point deadline_;
  bool has_ended_ = false;
};

// Throws Error if the message of the process is malformed.
ScriptError script_error(const Tree::List& values) {
  require(values.size() == 4, "an error has 4 values");
  auto kind = values[2].as<int64_t>();
  require(kind >= 0 && kind <= int64_t(ScriptError::Kind::exited), "an error has the kind ", kind);
  return ScriptError(values[0].as<std::string>(), values[1].as<std::string>(),
                     ScriptError::Kind(kind), int(values[3].as<int64_t>()));
}

}  // namespace

struct Sandbox::Impl {
  SandboxOptions options;
  std::map<std::string, Function> functions;
  std::unique_ptr<Process> process;
  std::mutex mutex;  // of `process` and `is_interrupted`, which interrupt() uses
  bool is_interrupted = false;
  std::atomic<bool> is_used = false;

  // Sends a request and returns the results.
  Tree::List request(const Message& message) {
    if (is_used.exchange(true))
      throw UsageError(
          "a Sandbox is used by two threads at once, or by a function that its script calls");
    struct Release {
      std::atomic<bool>& flag;
      ~Release() { flag = false; }
    } release{is_used};
    if (process == nullptr) start();
    process->set_deadline(options.seconds);
    process->limit_processor_time(options.processor_seconds);
    return exchange(message);
  }

  void start() {
    std::string program = options.program.empty() ? default_program() : options.program;
    auto made = std::make_unique<Process>(program, options);
    std::unique_lock lock(mutex);
    process = std::move(made);
    is_interrupted = false;
    lock.unlock();
    process->set_deadline(seconds_to_start);
    try {
      watched([&] { return receive_results(); });
      for (const auto& [name, _] : functions) exchange({Kind::define_function, {name}});
    } catch (const SandboxError& error) {
      throw SandboxError(error.what() + ("; it was starting: run " + program + " to see why"));
    }
  }

  Tree::List exchange(const Message& message) {
    std::string encoded = process->channel().encode(message);
    return watched([&] {
      process->channel().send(encoded);
      return receive_results();
    });
  }

  // Anything but an error of the script ends the process: what it would send next is unknown.
  template <class Body>
  Tree::List watched(Body body) {
    try {
      return body();
    } catch (const ScriptError&) {
      throw;
    } catch (const sandbox::Closed&) {
      constexpr int milliseconds = 1000;  // it closes the socket just before its end
      siginfo_t info = drop(milliseconds);
      throw SandboxError("the process of the Sandbox has ended: " +
                         (is_interrupted ? "it was interrupted" : cause(info, options)));
    } catch (const std::exception& error) {
      drop();
      throw SandboxError("the process of the Sandbox was ended: " + std::string(error.what()));
    } catch (...) {
      drop();
      throw;
    }
  }

  Tree::List receive_results() {
    for (;;) {
      Message message = process->channel().receive();
      Tree::List& values = message.values;
      switch (message.kind) {
        case Kind::results:
          return std::move(values);
        case Kind::script_error:
          throw script_error(values);
        case Kind::error:
          fail(values.at(0).as<std::string>());
        case Kind::line:
          if (options.console) options.console->line(values.at(0).as<std::string>());
          break;
        case Kind::call_program:
          process->channel().send(
              answer(values.at(0).as<std::string>(), values.at(1).as<Tree::List>()));
          break;
        default:
          fail("it sent a message of the unknown kind ", int(message.kind));
      }
    }
  }

  // The results of a function of the program.
  std::string answer(const std::string& name, const Tree::List& args) {
    try {
      auto found = functions.find(name);
      require(found != functions.end(), "there is no function '", name, "'");
      return process->channel().encode({Kind::results, found->second(args)});
    } catch (const std::exception& error) {
      return process->channel().encode({Kind::error, {std::string(error.what())}});
    }
  }

  siginfo_t drop(int milliseconds = 0) {
    std::unique_lock lock(mutex);
    std::unique_ptr<Process> ended = std::move(process);
    lock.unlock();
    return ended->end(milliseconds);
  }
};

Sandbox::Sandbox(SandboxOptions options) : impl_(std::make_unique<Impl>()) {
  if (!(options.seconds > 0) || options.processor_seconds <= 0 || options.message_bytes == 0)
    throw UsageError("Sandbox: expected limits that are more than 0");
  impl_->options = std::move(options);
  impl_->start();
}

Sandbox::~Sandbox() = default;

void Sandbox::run_string(const std::string& code, const std::string& name,
                         const std::vector<std::string>& args) {
  impl_->request({Kind::run, {code, name, Tree::List(args.begin(), args.end())}});
}

std::vector<Tree> Sandbox::call(const std::string& function, const std::vector<Tree>& args) {
  return impl_->request({Kind::call, {function, args}});
}

Tree Sandbox::get_global(const std::string& name) {
  Tree::List values = impl_->request({Kind::get_global, {name}});
  return values.empty() ? Tree() : values[0];
}

void Sandbox::set_global(const std::string& name, const Tree& value) {
  impl_->request({Kind::set_global, {name, value}});
}

void Sandbox::register_function(const std::string& name, Function function) {
  if (!function) throw UsageError("register_function: '" + name + "': the function is empty");
  impl_->request({Kind::define_function, {name}});
  impl_->functions[name] = std::move(function);
}

void Sandbox::interrupt() {
  std::lock_guard lock(impl_->mutex);
  if (impl_->process == nullptr || !impl_->is_used) return;
  impl_->is_interrupted = true;
  impl_->process->kill();
}

}  // namespace redco
