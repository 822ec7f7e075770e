// Merges equal lines of a shared prompt's workers.

#include "joined_output.h"

#include "worker_output.h"

#include <algorithm>
#include <utility>

namespace redco {

namespace {
// On a busy machine some processes run later than others.
constexpr auto flush_after = std::chrono::seconds(1);

void write_lines(int to, const std::string& prefix, const std::string& lines) {
  std::string text = prefix;
  for (char each : lines) {
    if (each == joined_line_separator)
      text += "\n" + prefix;
    else
      text += each;
  }
  write_line(to, std::move(text));
}

}  // namespace

bool JoinedOutput::are_alike() const {
  return std::ranges::all_of(lines_, [this](const auto& own) {
    return !own.empty() && own.front() == lines_.front().front();
  });
}

void JoinedOutput::add(size_t rank, std::string_view line) {
  lines_[rank].emplace_back(line);
  if (!due_) due_ = Clock::now() + flush_after;
}

void JoinedOutput::flush() {
  due_.reset();
  while (are_alike()) {
    write_lines(to_, "[all] ", lines_.front().front());
    for (auto& own : lines_) own.pop_front();
  }
  for (size_t rank = 0; rank < lines_.size(); ++rank) {
    std::string prefix = "[" + std::to_string(rank) + "] ";
    for (const auto& line : lines_[rank]) write_lines(to_, prefix, line);
    lines_[rank].clear();
  }
}

}  // namespace redco
