#include "worker_output.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace redco {

namespace {
constexpr size_t longest_line = size_t(1) << 20;
}

WorkerOutput::WorkerOutput(int from, int to, std::string prefix)
    : from_(from), to_(to), prefix_(std::move(prefix)) {}

WorkerOutput::~WorkerOutput() {
  if (!buffer_.empty()) write_line(buffer_);
  close(from_);
}

bool WorkerOutput::pump() {
  char bytes[65536];
  while (true) {
    ssize_t n = read(from_, bytes, sizeof(bytes));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    if (n <= 0) return false;
    buffer_.append(bytes, static_cast<size_t>(n));
    hand_on();
  }
}

void WorkerOutput::hand_on() {
  size_t from = 0;
  for (size_t end; (end = buffer_.find('\n', from)) != std::string::npos; from = end + 1)
    write_line(std::string_view(buffer_).substr(from, end - from));
  buffer_.erase(0, from);
  if (buffer_.size() < longest_line) return;
  write_line(buffer_);
  buffer_.clear();
}

void WorkerOutput::write_line(std::string_view line) const {
  if (line.ends_with('\r')) line.remove_suffix(1);
  line.remove_prefix(line.rfind('\r') + 1);  // npos + 1 is 0
  std::string text = prefix_;
  (text += line) += '\n';
  // In one piece: lines of several programs on one terminal do not mix.
  for (size_t done = 0; done < text.size();) {
    ssize_t n = write(to_, text.data() + done, text.size() - done);
    if (n < 0 && errno != EINTR) return;  // nobody reads it
    if (n > 0) done += static_cast<size_t>(n);
  }
}

}  // namespace redco
