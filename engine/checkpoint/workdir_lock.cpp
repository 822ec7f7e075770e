// Locks a work folder for one run.

#include "workdir_lock.h"

#include "../io/atomic_file.h"
#include "../io/file_lock.h"
#include "../io/input_file.h"

#include <redco/checkpoint.h>
#include <redco/error.h>

#include <unistd.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>
#include <utility>

namespace redco::io {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

namespace {

// A network file system keeps the locks of a lost host this long: NFS's lease is 90 s.
constexpr auto longest_wait_for_itself = std::chrono::seconds(120);

std::recursive_mutex mutex;  // a lock may be destroyed while another is made
std::map<std::string, std::weak_ptr<WorkdirLock>> locks;  // of this process, by folder

// A name that differs between runs. Attempts of one launch have the same store; torchrun's default
// name of a run is "none".
std::string name_of(const Processes& processes) {
  if (processes.is_worker)
    return processes.store_address + ":" + std::to_string(processes.store_port);
  return processes.run == "none" ? "" : processes.run;
}

// The content of the lock file: the holder and its run.
std::string holder_text(const Processes& processes) {
  char host[256] = "localhost", since[40];
  gethostname(host, sizeof(host) - 1);
  std::time_t now = std::time(nullptr);
  std::tm local;
  std::strftime(since, sizeof(since), "%Y-%m-%d %H:%M:%S", localtime_r(&now, &local));
  std::ostringstream text;
  text << "process " << getpid() << " on host " << host << " since " << since << "\n"
       << name_of(processes) << "\n";
  return text.str();
}

struct Holder {
  std::string process = "another process", run;
};

Holder read_holder(const std::string& path) {
  Holder holder;
  try {
    std::istringstream text(read_text(path, "a lock file", 4096));
    if (std::string line; std::getline(text, line) && !line.empty()) holder.process = line;
    std::getline(text, holder.run);
  } catch (const Error&) {
    // The lock was just released.
  }
  return holder;
}

std::string lock_path(const std::string& workdir) {
  std::error_code error;
  std::string folder = fs::weakly_canonical(workdir, error);
  return (error ? workdir : folder) + "/.lock";
}

}  // namespace

struct WorkdirLock::State {
  std::unique_ptr<FileLock> lock;
};

WorkdirLock::WorkdirLock() : state_(std::make_unique<State>()) {}

WorkdirLock::~WorkdirLock() {
  std::lock_guard guard(mutex);
  if (is_taken()) state_->lock->remove_file();
  state_.reset();
}

bool WorkdirLock::is_taken() const {
  return state_->lock && state_->lock->state() == FileLock::State::taken;
}

bool WorkdirLock::is_held_elsewhere(const std::string& workdir) {
  std::string path = lock_path(workdir);
  std::lock_guard guard(mutex);
  return locks[path].expired() && FileLock::is_locked(path);
}

std::shared_ptr<WorkdirLock> WorkdirLock::take(const std::string& workdir,
                                               const Processes& processes) {
  std::error_code error;
  fs::create_directories(workdir, error);
  require(!error, "cannot make the work folder ", workdir, ": ", error.message());
  std::string path = lock_path(workdir);
  std::string own = name_of(processes);
  auto give_up = steady_clock::now() + longest_wait_for_itself;
  for (;;) {
    {
      std::lock_guard guard(mutex);
      if (auto shared = locks[path].lock()) return shared;
      auto lock = std::make_unique<FileLock>(path, true);
      auto state = lock->state();
      if (state == FileLock::State::gone) continue;
      require(state != FileLock::State::linked, "the lock file ", path,
              " is a link to another file: remove it; a run makes its own lock file there");
      if (state != FileLock::State::held) {
        std::shared_ptr<WorkdirLock> made(new WorkdirLock);
        if (state == FileLock::State::taken) lock->write(holder_text(processes));
        made->state_->lock = std::move(lock);
        locks[path] = made;
        remove_stale_files(workdir);
        clean_checkpoints(workdir + "/ckpts");
        return made;
      }
    }
    Holder holder = read_holder(path);
    require(!own.empty() && own == holder.run && steady_clock::now() < give_up, "the work folder ",
            workdir, " is in use by another run (", holder.process,
            "): wait until that run ends, end it, or use another workdir");
    check_interrupt();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace redco::io
