// Regular files that are read or mapped.

#include "input_file.h"

#include "mappings.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace redco::io {

namespace {

[[noreturn]] void fail_to_read(const char* what, const std::string& path, int cause) {
  std::string text = std::string("cannot ") + what + " " + path + ": " + std::strerror(cause);
  if (cause == ENOENT || cause == EIO) fail(text);
  throw UnreadableFile(text);
}

}  // namespace

InputFile::InputFile(std::string path, const std::string& kind)
    // O_NONBLOCK: opening a pipe nobody writes to must not hang.
    : path_(std::move(path)), descriptor_(open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0) fail_to_read("open", path_, errno);
  struct stat status {};
  bool is_known = fstat(descriptor_, &status) == 0;
  if (!is_known || !S_ISREG(status.st_mode)) {
    int cause = errno;
    close(descriptor_);  // the destructor does not run
    if (!is_known) fail_to_read("read", path_, cause);
    fail(path_, ": ", S_ISDIR(status.st_mode) ? "a folder" : "a pipe or device", ", expected ",
         kind);
  }
  size_ = uint64_t(status.st_size);
}

InputFile::~InputFile() { close(descriptor_); }

void InputFile::read(void* data, size_t size, uint64_t offset) const {
  char* next = static_cast<char*>(data);
  while (size > 0) {
    ssize_t count = pread(descriptor_, next, size, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_to_read("read", path_, errno);
    require(count > 0, path_, ": the file was shortened while it was read");
    next += count;
    offset += uint64_t(count);
    size -= size_t(count);
  }
}

std::shared_ptr<std::byte> InputFile::map() const {
  // Private and without reserving swap space.
  void* base =
      mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, descriptor_, 0);
  if (base == MAP_FAILED) fail_to_read("map", path_, errno);
  add_mapping(base, size_, path_);
  return {static_cast<std::byte*>(base), [size = size_](std::byte* start) {
            remove_mapping(start);
            munmap(start, size);
          }};
}

std::string read_text(const std::string& path, const std::string& kind, uint64_t limit) {
  InputFile file(path, kind);
  require(file.size() <= limit, path, ": the file has ", file.size(), " bytes, expected at most ",
          limit, " of ", kind);
  std::string text(file.size(), '\0');
  file.read(text.data(), text.size(), 0);
  return text;
}

}  // namespace redco::io
