#include "faulty_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <string>

// Each call is made as a system call of its own: the functions of libc are those replaced here.

namespace {

enum class Act { none, kill_before, kill_after, fail, shorten };

struct Plan {
  std::string folder, name, kind, log, rank;
  long first = -1, last = -1;
  Act act = Act::none;
  int error = 0;
  bool no_exchange = false, no_sync = false;
  std::atomic<long> count = 0;
};

std::string variable(const char* name) {
  const char* value = std::getenv((std::string("FAULTY_FILES") + name).c_str());
  return value == nullptr ? "" : value;
}

void read(Plan& plan) {
  plan.count = 0;
  plan.folder = variable("");
  plan.name = variable("_NAME");
  plan.kind = variable("_KIND");
  plan.log = variable("_LOG");
  plan.no_exchange = !variable("_NO_EXCHANGE").empty();
  plan.no_sync = !variable("_NO_SYNC").empty();
  std::string call = variable("_CALL"), act = variable("_ACT");
  plan.rank = variable("_RANK");
  plan.first = call.empty() ? -1 : std::atol(call.c_str());
  plan.last = call.ends_with('-') ? LONG_MAX : plan.first;
  plan.act = act == "kill_before"  ? Act::kill_before
             : act == "kill_after" ? Act::kill_after
             : act == "short"      ? Act::shorten
             : act == "count"      ? Act::none
                                   : Act::fail;
  plan.error = act == "ENOSPC" ? ENOSPC : act == "EIO" ? EIO : act == "EROFS" ? EROFS : EINTR;
}

// A process that is alone has rank 0.
bool is_own_rank(const Plan& plan) {
  const char* own = std::getenv("RANK");
  return plan.rank.empty() || plan.rank == (own == nullptr ? "0" : own);
}

Plan& plan() {
  static Plan& plan = *[] {
    auto* made = new Plan;  // for as long as there are calls, at exit too
    read(*made);
    return made;
  }();
  return plan;
}

std::string whole_path(int folder, const char* path) {
  char text[PATH_MAX] = "";
  if (path != nullptr && path[0] == '/') return path;
  std::string link =
      folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/" + std::to_string(folder);
  long size = syscall(SYS_readlinkat, AT_FDCWD, link.c_str(), text, sizeof(text) - 1);
  std::string base(text, size > 0 ? size_t(size) : 0);
  return path == nullptr ? base : base + "/" + path;
}

void die() {
  syscall(SYS_kill, getpid(), SIGKILL);
  for (;;) pause();
}

void note(const Plan& plan, const char* kind, const std::string& path) {
  if (plan.log.empty()) return;
  std::string line = std::string(kind) + " " + path + "\n";
  long file = syscall(SYS_openat, AT_FDCWD, plan.log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
  syscall(SYS_write, file, line.data(), line.size());
  syscall(SYS_close, file);
}

// One call that changes files: `make` makes it, and answers -1 with errno where it fails.
template <class Call>
long faulty(const char* kind, const std::string& path, const Call& make) {
  Plan& now = plan();
  bool counts = !now.folder.empty() && path.starts_with(now.folder) &&
                path.find(now.name) != path.npos && (now.kind.empty() || now.kind == kind) &&
                is_own_rank(now);
  if (!counts) return make(false);
  note(now, kind, path);
  long call = now.count++;
  bool is_it = call >= now.first && call <= now.last && now.first >= 0;
  if (is_it && now.act == Act::kill_before) die();
  if (is_it && now.act == Act::fail) {
    errno = now.error;
    return -1;
  }
  long result = make(is_it && now.act == Act::shorten);
  if (is_it && now.act == Act::kill_after) die();
  return result;
}

long open_faulty(const char* path, int flags, mode_t mode) {
  auto make = [&](bool) { return syscall(SYS_openat, AT_FDCWD, path, flags, mode); };
  if ((flags & (O_WRONLY | O_RDWR | O_CREAT)) == 0) return make(false);
  return faulty("open", whole_path(AT_FDCWD, path), make);
}

long rename_faulty(const char* kind, const char* from, const char* to, unsigned flags) {
  return faulty(kind, whole_path(AT_FDCWD, to), [&](bool) -> long {
    if (flags != 0 && plan().no_exchange) {
      errno = EINVAL;
      return -1;
    }
    return syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, flags);
  });
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED void plan_faulty_files() { read(plan()); }
EXPORTED long count_faulty_files() { return plan().count; }

EXPORTED int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return int(open_faulty(path, flags, mode));
}
EXPORTED int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return int(open_faulty(path, flags, mode));
}
EXPORTED ssize_t write(int file, const void* data, size_t size) {
  // Pipes and terminals are written to often.
  if (plan().folder.empty()) return syscall(SYS_write, file, data, size);
  return faulty("write", whole_path(file, nullptr), [&](bool is_short) {
    return syscall(SYS_write, file, data, is_short ? (size + 1) / 2 : size);
  });
}
EXPORTED int fsync(int file) {
  return int(faulty("fsync", whole_path(file, nullptr),
                    [&](bool) { return plan().no_sync ? 0 : syscall(SYS_fsync, file); }));
}
EXPORTED int rename(const char* from, const char* to) noexcept {
  return int(rename_faulty("rename", from, to, 0));
}
EXPORTED int renameat2(int, const char* from, int, const char* to, unsigned flags) noexcept {
  return int(rename_faulty("renameat2", from, to, flags));
}
EXPORTED int link(const char* from, const char* to) noexcept {
  return int(faulty("link", whole_path(AT_FDCWD, to),
                    [&](bool) { return syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0); }));
}
EXPORTED int unlinkat(int folder, const char* path, int flags) noexcept {
  return int(faulty(flags & AT_REMOVEDIR ? "rmdir" : "unlink", whole_path(folder, path),
                    [&](bool) { return syscall(SYS_unlinkat, folder, path, flags); }));
}
EXPORTED int unlink(const char* path) noexcept { return unlinkat(AT_FDCWD, path, 0); }
EXPORTED int rmdir(const char* path) noexcept { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
EXPORTED int remove(const char* path) noexcept {
  struct stat there {};
  bool is_folder = lstat(path, &there) == 0 && S_ISDIR(there.st_mode);
  return unlinkat(AT_FDCWD, path, is_folder ? AT_REMOVEDIR : 0);
}
EXPORTED int mkdir(const char* path, mode_t mode) noexcept {
  return int(faulty("mkdir", whole_path(AT_FDCWD, path),
                    [&](bool) { return syscall(SYS_mkdirat, AT_FDCWD, path, mode); }));
}
