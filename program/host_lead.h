// The decisions of host 0's launcher for all hosts.

#pragma once

#include "host_board.h"

#include <redco/detail/notices.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace redco {

/// The restarts of a run after failures.
struct Restarts {
  int64_t max = 0;
  int64_t min_hosts = 0;                    ///< required hosts; 0: all
  std::chrono::seconds first_meeting{600};  ///< time limit for hosts to join at the start
  std::chrono::seconds next_meeting{60};    ///< and after a failure
};

/// The decisions of host 0's launcher for all: who takes part in an attempt, whether there is
/// another, and when the run ends.
class HostLead {
 public:
  HostLead(HostBoard& board, const Restarts& restarts);
  /// Reads the hosts' messages and decides. Call it regularly.
  void round();
  /// Whether every reachable host has left.
  bool all_left();

 private:
  using Clock = std::chrono::steady_clock;
  struct Sign {
    std::string text;
    Clock::time_point changed;
  };

  void listen();
  bool is_silent(int64_t host) const;
  void open(int64_t attempt);
  void meet();
  void watch();

  HostBoard& board_;
  const Restarts restarts_;
  std::vector<Sign> signs_;
  int64_t attempt_ = 0;
  Clock::time_point opened_;
  HostBoard::Crew crew_;  // without members until decided
  std::unique_ptr<RunStore> part_;
  std::unique_ptr<Waiting> waiting_;  // for the hosts of the attempt
};

}  // namespace redco
