#pragma once

#include <redco/detail/run_store.h>
#include <redco/export.h>
#include <redco/mesh.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace redco {

namespace mesh {
class Connection;
}

/// Turns that process 0 hands out to all processes of a run, as at a shared prompt. If one process
/// fails in a turn, the others abandon the turn too, even if they wait for it in a collective, and
/// all continue with the next: the groups of all meshes reconnect at their next use, and existing
/// objects stay valid.
///
///     redco::Turns turns(redco::find_processes());
///     while (auto task = turns.take()) {
///       turns.begin([] { /* ask the running task to end */ });
///       try { run(*task); } catch (const std::exception& error) { turns.fail(error.what()); }
///       turns.end();
///     }
class REDCO_API Turns {
 public:
  /// Connects to the run's store. All processes of the run do so before their first mesh.
  explicit Turns(const Processes& processes);
  ~Turns();

  /// On process 0: hands out the next task; none ends the turns.
  void give(const std::optional<std::string>& task);
  /// On the others: waits for the next task without a timeout. Throws Error if a process of the run
  /// is gone.
  std::optional<std::string> take();

  /// On all processes, before the task. If another process fails in the turn, `leave` is called on
  /// another thread.
  void begin(std::function<void()> leave);
  /// Reports that this process failed. Returns the first failure of the turn, or of the run if
  /// there is one; it may be that of another process.
  RunStore::Failure fail(const std::string& text);
  /// Waits until all processes have ended the turn; returns false if any failed. An interrupt in
  /// the meantime only makes the processes that are still in the turn abandon it. Throws Error if a
  /// process of the run is gone.
  bool end();

 private:
  std::string key(const std::string& name) const;

  const Processes processes_;
  mesh::Connection& connection_;
  std::unique_ptr<RunStore> store_;
  int64_t number_ = 0;
  std::shared_ptr<RunStore> turn_;  // this turn's failures
  bool failed_ = false;
};

}  // namespace redco
