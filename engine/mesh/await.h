#pragma once

#include "backend.h"
#include "run/peers.h"

#include <redco/export.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace redco::mesh {

/// The parts of a connected group of two or more processes.
struct GroupParts {
  std::string name;
  Backend backend;
  int64_t rank = 0;
  std::vector<int64_t> processes;  ///< the rank in the run, by rank in this group
  std::chrono::milliseconds timeout = {};
  LinkKind link = LinkKind::none;
  bool is_link() const { return link != LinkKind::none; }
  bool has_core = false;  ///< whether this host has at least one core per process
  Peers* peers = nullptr;
  size_t number = 0;  ///< the group's index in `peers`
};

/// A collective in progress.
struct Started {
  std::shared_ptr<const GroupParts> group;
  What what;           ///< "all_reduce of Float[3] over group \"dp\""
  int64_t number = 0;  ///< the group's count of started collectives, including this one
  c10::intrusive_ptr<c10d::Work> work;
};

/// Waits for the collective: on the CPU the host waits, on a stream only the device. Throws Error
/// if a process failed or is gone or on a timeout, and Interrupted.
void await(const Started& collective);

/// Checks for failures and timeouts while the host waits for a collective.
class Lookout {
 public:
  explicit Lookout(const Started& collective) : collective_(collective) {}

  /// Throws Error if a process failed, is gone or diverged, and Interrupted. Must be called every
  /// `Peers::look_around`.
  void look();
  bool is_late() const { return waited() >= collective_.group->timeout; }
  /// The processes that have not started the collective, as far as is known.
  std::vector<int64_t> missing() const;
  /// Throws the timeout Error, which names the missing processes.
  [[noreturn]] void fail_late() const;
  /// Throws Error if a failure is known or the collectives were aborted, which leaves garbage in
  /// their results.
  void check_not_aborted() const;
  /// Throws the failure of the process that caused the backend's error, once it is known, or else
  /// an Error with the backend's own `cause`.
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

}  // namespace redco::mesh
