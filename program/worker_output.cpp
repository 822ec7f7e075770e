// Splits a worker's output into lines.

#include "worker_output.h"

#include "standard_files.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace redco {

namespace {
constexpr size_t longest_line = size_t(1) << 20;
}

WorkerOutput::WorkerOutput(int from, Take take) : from_(from), take_(std::move(take)) {}

WorkerOutput::~WorkerOutput() {
  end_line();
  close(from_);
}

bool WorkerOutput::pump() {
  char bytes[65536];
  while (true) {
    ssize_t n = read(from_, bytes, sizeof(bytes));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    if (n <= 0) return false;
    buffer_.append(bytes, size_t(n));
    size_t from = 0;
    for (size_t end; (end = buffer_.find('\n', from)) != std::string::npos; from = end + 1)
      hand_on(std::string_view(buffer_).substr(from, end - from));
    buffer_.erase(0, from);
    if (buffer_.size() >= longest_line) end_line();
  }
}

void WorkerOutput::end_line() {
  if (!buffer_.empty()) hand_on(buffer_);
  buffer_.clear();
}

void WorkerOutput::hand_on(std::string_view line) const {
  if (line.ends_with('\r')) line.remove_suffix(1);
  line.remove_prefix(line.rfind('\r') + 1);  // npos + 1 is 0
  take_(line);
}

void write_line(int to, std::string line) {
  line += '\n';
  write_all(to, line);
}

}  // namespace redco
