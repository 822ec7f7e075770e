// Appends to a file in one write.

#include "append_file.h"

#include "output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace redco::io {

void append_to_file(const std::string& path, std::string_view bytes) {
  // O_NONBLOCK: opening a pipe nobody reads must not hang.
  int descriptor = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  if (descriptor < 0) fail_to_write(path);
  off_t before = lseek(descriptor, 0, SEEK_END);
  ssize_t written = write(descriptor, bytes.data(), bytes.size());
  int cause = written < 0 ? errno : ENOSPC;
  bool whole = written == static_cast<ssize_t>(bytes.size());
  // A partial write would corrupt the file for its readers.
  if (!whole && written > 0 && ftruncate(descriptor, before) != 0) cause = errno;
  close(descriptor);
  if (whole) return;
  errno = cause;
  fail_to_write(path);
}

}  // namespace redco::io
