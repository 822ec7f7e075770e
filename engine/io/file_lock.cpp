// Exclusive locks on files.

#include "file_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace redco::io {

namespace {

// A link could lead to any file, which `write` would replace.
constexpr int common_flags = O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW;

// A lock of the whole file. It belongs to the open file: per-process locks are released when any
// descriptor of the file is closed.
struct flock whole_file() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

FileLock::State take(int descriptor, const std::string& path, bool creates) {
  using enum FileLock::State;
  if (descriptor < 0 && errno == ELOOP) return linked;
  if (descriptor < 0) return errno == ENOENT && !creates ? gone : unsupported;
  auto lock = whole_file();
  int result = fcntl(descriptor, F_OFD_SETLK, &lock);
  while (result != 0 && errno == EINTR) result = fcntl(descriptor, F_OFD_SETLK, &lock);
  if (result != 0) return errno == EAGAIN || errno == EACCES ? held : unsupported;
  // Another process may have removed it between opening and locking.
  struct stat own {
  }, named{};
  bool is_same = fstat(descriptor, &own) == 0 && lstat(path.c_str(), &named) == 0 &&
                 own.st_dev == named.st_dev && own.st_ino == named.st_ino;
  return !is_same ? gone : own.st_nlink > 1 ? linked : taken;
}

}  // namespace

FileLock::FileLock(std::string path, bool creates)
    : path_(std::move(path)),
      // Opened for writing: network file systems cannot lock other files.
      descriptor_(open(path_.c_str(), O_RDWR | common_flags | (creates ? O_CREAT : 0), 0666)),
      state_(take(descriptor_, path_, creates)) {}

FileLock::~FileLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

bool FileLock::is_locked(const std::string& path) {
  int descriptor = open(path.c_str(), O_RDONLY | common_flags);
  if (descriptor < 0) return false;
  auto lock = whole_file();
  bool is_known = fcntl(descriptor, F_OFD_GETLK, &lock) == 0;
  close(descriptor);
  return is_known && lock.l_type != F_UNLCK;
}

void FileLock::write(const std::string& text) const {
  if (ftruncate(descriptor_, 0) != 0) return;
  (void)!pwrite(descriptor_, text.data(), text.size(), 0);
}

void FileLock::remove_file() const { unlink(path_.c_str()); }

}  // namespace redco::io
