#pragma once

#include "backend.h"
#include "store/peers.h"

#include <redco/export.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace redco {

/// What a group of two or more is made of while its processes are connected.
struct GroupParts {
  std::string name;
  Backend backend;
  int64_t rank = 0;
  std::vector<int64_t> processes;  ///< the rank in the run of each rank of this group
  std::chrono::milliseconds timeout = {};
  bool has_core = false;  ///< whether each process of this host has a core of its own
  Peers* peers = nullptr;
  size_t number = 0;  ///< what `peers` counts its collectives under
};

/// A collective that was started.
struct Started {
  std::shared_ptr<const GroupParts> group;
  What what;           ///< "all_reduce of Float[3] over group \"dp\""
  int64_t number = 0;  ///< how many the group has started, with this one
  c10::intrusive_ptr<c10d::Work> work;
};

/// Waits for the collective: on the CPU the host does, on a stream only the device. Throws Error
/// when a process failed or is gone, when the time is up, and Interrupted.
void await(const Started& collective);

/// Looks around while the host waits for a collective.
class Lookout {
 public:
  explicit Lookout(const Started& collective) : collective_(collective) {}

  /// Throws Error when a process failed, is gone or diverged, and Interrupted. To be called each
  /// `Peers::look_around`.
  void look();
  bool is_late() const { return waited() >= collective_.group->timeout; }
  /// The processes that have not started the collective, as far as is known.
  std::vector<int64_t> missing() const;
  /// Throws the Error that says that the time is up, and who is missing.
  [[noreturn]] void fail_late() const;
  /// Throws Error when a failure is known or the collectives were aborted, which leaves garbage in
  /// their results.
  void check_not_aborted() const;
  /// Throws the failure of the process that made the backend fail, once it is known, or an Error
  /// with the backend's own `cause`.
  [[noreturn]] void explain(const std::string& cause) const;

  std::chrono::steady_clock::duration waited() const {
    return std::chrono::steady_clock::now() - from_;
  }

 private:
  void check() const;

  const Started& collective_;
  const std::chrono::steady_clock::time_point from_ = std::chrono::steady_clock::now();
  std::chrono::milliseconds until_suspicion_ = std::chrono::seconds(1);
};

}  // namespace redco
