#include "standard_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace redco {

namespace {
std::atomic<bool> has_lost_output{false};
}

void open_standard_files() {
  // `open` returns the lowest free number.
  int opened;
  do opened = open("/dev/null", O_RDWR);
  while (opened >= 0 && opened <= STDERR_FILENO);
  if (opened >= 0) close(opened);
}

void write_all(int to, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t n = write(to, bytes.data(), bytes.size());
    if (n < 0 && errno != EINTR) {
      if (to == STDOUT_FILENO) has_lost_output = true;
      return;
    }
    if (n > 0) bytes.remove_prefix(size_t(n));
  }
}

int checked_exit_code(int code) {
  bool is_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && !has_lost_output;
  if (is_written || code != 0) return code;
  std::fprintf(stderr,
               "redco-lua: some of the output is lost: standard output could not be written\n");
  return 1;
}

void check_output_at_exit() {
  on_exit(
      [](int code, void*) {
        if (int checked = checked_exit_code(code); checked != code) _exit(checked);
      },
      nullptr);
}

}  // namespace redco
