// Interrupts, and edit distance for suggestions in messages.

#include <redco/error.h>

#include <redco/detail/forced_stop.h>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

namespace redco {

namespace {
std::atomic<bool> interrupt_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set inside a signal handler");
}  // namespace

void request_interrupt() noexcept {
  interrupt_requested.store(true, std::memory_order_relaxed);
  note_asked_to_end(SIGINT);
}

bool is_interrupt_pending() noexcept { return interrupt_requested.load(std::memory_order_relaxed); }

void check_interrupt() {
  if (interrupt_requested.load(std::memory_order_relaxed)) [[unlikely]] {
    interrupt_requested.store(false, std::memory_order_relaxed);
    throw Interrupted();
  }
}

size_t edit_distance(const std::string& a, const std::string& b) {
  auto equal = [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  };
  std::vector<size_t> before, above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(above, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j - 1] + !equal(a[i - 1], b[j - 1]), above[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && equal(a[i - 1], b[j - 2]) && equal(a[i - 2], b[j - 1]))
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row.back();
}

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
  constexpr size_t longest = 64;  // the time grows with the product of the lengths
  if (word.size() >= longest) return "";
  auto is_part_of = [&](const std::string& name) {
    return word.size() >= 3 && (name.starts_with(word + "_") || name.ends_with("_" + word));
  };
  auto rank = [&](const std::string& name) {
    auto [end, _] = std::mismatch(word.begin(), word.end(), name.begin(), name.end());
    size_t distance = is_part_of(name) ? 1 : edit_distance(word, name);
    return std::tuple(distance, word.end() - end, name);
  };
  // A word of one letter must match; in one of two or three letters, one may differ.
  size_t too_far = word.size() > 3 ? word.size() / 3 + 2 : std::min<size_t>(word.size(), 2);
  auto best = std::tuple(too_far, std::ptrdiff_t{0}, std::string());
  for (const std::string& name : candidates)
    if (name.size() < longest) best = std::min(best, rank(name));
  return std::get<2>(best);
}

}  // namespace redco
