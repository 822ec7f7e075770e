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

class Connection;

/// What the processes of a run do in turns which process 0 gives out, as at a prompt that they
/// share. When one fails in a turn the others leave it too, also where they wait for that one in a
/// collective, and all go on with the next: the groups of all meshes connect anew when they are
/// next used, under the objects there are.
///
///     redco::Turns turns(redco::find_processes());
///     while (auto task = turns.take()) {
///       turns.begin([] { /* ask what runs here to end */ });
///       try { run(*task); } catch (const std::exception& error) { turns.fail(error.what()); }
///       turns.end();
///     }
class REDCO_API Turns {
 public:
  /// Connects to the run's store; all processes of the run do, before their first mesh.
  explicit Turns(const Processes& processes);
  ~Turns();

  /// On process 0: what all do next; without a task there are no more turns.
  void give(const std::optional<std::string>& task);
  /// On the others: waits for that, however long. Throws Error when a process of the run is gone.
  std::optional<std::string> take();

  /// On all, before they do it. When another process fails in the turn `leave` is called, on
  /// another thread.
  void begin(std::function<void()> leave);
  /// This process has failed. Returns the first failure of the turn, or of the run if there is one,
  /// which may be another's.
  RunStore::Failure fail(const std::string& text);
  /// Waits until all processes have ended the turn; false where any has failed. An interrupt
  /// meanwhile makes those that have not leave it, and nothing else. Throws Error when a process of
  /// the run is gone.
  bool end();

 private:
  std::string key(const std::string& name) const;

  const Processes processes_;
  Connection& connection_;
  std::unique_ptr<RunStore> store_;
  int64_t number_ = 0;
  std::shared_ptr<RunStore> turn_;  // this turn's failures
  bool failed_ = false;
};

}  // namespace redco
