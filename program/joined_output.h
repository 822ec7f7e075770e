#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace redco {

/// What the workers of a shared prompt write to one stream. Lines that all write alike come out
/// once, with `[all] ` before them; the others by worker, with `[rank] `.
class JoinedOutput {
 public:
  using Clock = std::chrono::steady_clock;

  JoinedOutput(int to, size_t n_workers) : to_(to), lines_(n_workers) {}

  void add(size_t rank, std::string_view line);
  /// Hands on all there is: the workers have written what they will.
  void flush();
  /// When to `flush` at the latest: a worker that writes for long is heard meanwhile.
  std::optional<Clock::time_point> due() const { return due_; }

 private:
  bool are_alike() const;

  int to_;
  std::vector<std::deque<std::string>> lines_;  // of each worker, that have not come out
  std::optional<Clock::time_point> due_;
};

}  // namespace redco
