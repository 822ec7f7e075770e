#pragma once

#include "host_board.h"

#include <redco/detail/notices.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace redco {

/// How often a run starts again after a failure, and with how many hosts.
struct Restarts {
  int64_t max = 0;
  int64_t min_hosts = 0;                    ///< 0: all
  std::chrono::seconds first_meeting{600};  ///< how long hosts may take to come at the start,
  std::chrono::seconds next_meeting{60};    ///< and after a failure
};

/// What the first host's launcher decides for all: who takes part in an attempt, whether there is
/// another, and when the run is over.
class HostLead {
 public:
  HostLead(HostBoard& board, const Restarts& restarts);
  /// Looks at what the hosts say, and decides what there is to decide. To be called often.
  void round();
  /// Whether every host that can be heard has left.
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
  HostBoard::Plan plan_;  // without members: there is none yet
  std::unique_ptr<RunStore> part_;
  std::unique_ptr<Waiting> waiting_;  // for the hosts of the attempt
};

}  // namespace redco
