// Files that are written and synced.

#include "output_file.h"

#include <redco/error.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace redco::io {

void fail_to_write(const std::string& path) {
  std::string text = "cannot write " + path + ": " + std::strerror(errno);
  if (errno == ENOSPC || errno == EDQUOT) throw NoSpace(text);
  throw Error(text);
}

namespace {

// Repeats a call that a signal interrupted, which happens on network file systems.
template <class Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace

OutputFile::OutputFile(std::string path, std::string shown)
    : path_(std::move(path)), shown_(shown.empty() ? path_ : std::move(shown)) {
  descriptor_ = uninterrupted(
      [&] { return open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
  if (descriptor_ < 0) fail_to_write(shown_);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void OutputFile::write(const void* data, size_t size) {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    ssize_t written = uninterrupted([&] { return ::write(descriptor_, next, size); });
    if (written == 0) errno = ENOSPC;
    if (written <= 0) fail_to_write(shown_);
    next += written;
    size -= size_t(written);
  }
}

void OutputFile::finish() {
  if (uninterrupted([&] { return fsync(descriptor_); }) != 0) fail_to_write(shown_);
  // A network file system may report a failed write only here.
  if (close(std::exchange(descriptor_, -1)) != 0) fail_to_write(shown_);
}

void sync_file(const std::string& path) {
  int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail_to_write(path);
  int result = uninterrupted([&] { return fsync(descriptor); });
  int cause = errno;
  close(descriptor);
  errno = cause;
  // Some file systems cannot sync a folder and return EINVAL.
  if (result != 0 && cause != EINVAL) fail_to_write(path);
}

void sync_folder(const std::string& folder) { sync_file(folder); }

}  // namespace redco::io
