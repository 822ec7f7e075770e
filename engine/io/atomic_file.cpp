#include "atomic_file.h"

#include <redco/error.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

namespace redco {

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  struct stat there {};
  if (stat(path_.c_str(), &there) == 0)
    require(S_ISREG(there.st_mode), "cannot write ", path_, ": there is a ",
            S_ISDIR(there.st_mode) ? "folder" : "device or other special file",
            " of this name, expected a regular file or nothing");

  size_t slash = path_.rfind('/');
  folder_ = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
  std::string name = slash == std::string::npos ? path_ : path_.substr(slash + 1);
  require(!name.empty(), "cannot write '", path_, "': the path ends without a file name");

  // Hidden, so that no pattern such as *.safetensors takes a half-written file for a whole one;
  // cut, so that a long name does not become too long. Names left by a killed process are skipped.
  static std::atomic<unsigned> counter{0};
  while (descriptor_ < 0) {
    temporary_ = folder_ + "/." + name.substr(0, 200) + "." + std::to_string(getpid()) + "-" +
                 std::to_string(counter++) + ".tmp";
    descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && errno != EEXIST) fail_with_errno();
  }
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void AtomicFile::fail_with_errno() const {
  fail("cannot write ", path_, ": ", std::strerror(errno));
}

void AtomicFile::write(const void* data, size_t size) {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    ssize_t written = ::write(descriptor_, next, size);
    if (written < 0 && errno == EINTR) continue;
    if (written == 0) errno = ENOSPC;
    if (written <= 0) fail_with_errno();
    next += written;
    size -= static_cast<size_t>(written);
  }
}

void AtomicFile::finish() {
  if (fsync(descriptor_) != 0) fail_with_errno();
  // A network file system may report a failed write only here.
  if (close(std::exchange(descriptor_, -1)) != 0) fail_with_errno();
}

void AtomicFile::commit() {
  if (descriptor_ >= 0) finish();
  if (rename(temporary_.c_str(), path_.c_str()) != 0) fail_with_errno();
  temporary_.clear();

  // The new name itself is safe once the folder is synced; some file systems cannot and say EINVAL.
  int folder = open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) fail_with_errno();
  int result = fsync(folder);
  int cause = errno;
  close(folder);
  errno = cause;
  if (result != 0 && cause != EINVAL) fail_with_errno();
}

void write_file(const std::string& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

}  // namespace redco
