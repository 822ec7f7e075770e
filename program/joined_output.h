#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace redco {

/// Separates lines that JoinedOutput compares and prints as a whole, like those of a tensor:
/// ASCII's record separator.
constexpr char joined_line_separator = '\x1e';

/// The output of a shared prompt's workers to one stream. Lines that all workers write are printed
/// once, with the prefix `[all] `; others by worker, with `[rank] `.
class JoinedOutput {
 public:
  using Clock = std::chrono::steady_clock;

  JoinedOutput(int to, size_t n_workers) : to_(to), lines_(n_workers) {}

  void add(size_t rank, std::string_view line);
  /// Prints everything that is buffered. Call it when the workers have written all output of a
  /// turn.
  void flush();
  /// The latest time to call `flush`, so that a busy worker's output appears meanwhile.
  std::optional<Clock::time_point> due() const { return due_; }

 private:
  bool are_alike() const;

  int to_;
  std::vector<std::deque<std::string>> lines_;  // lines of each worker not printed yet
  std::optional<Clock::time_point> due_;
};

}  // namespace redco
