#pragma once

#include <redco/mesh.h>

#include <memory>
#include <string>

namespace redco::io {

/// Prevents other runs from using a work folder. The system releases the lock when the process ends
/// in any way. The Deployers of one process share a lock.
class WorkdirLock {
 public:
  /// Creates the folder if it is missing. The first lock of this process also removes the temporary
  /// files of killed runs. A restarted run waits for its earlier attempt to end. Throws Error,
  /// which names the process that holds the lock, if another run uses the folder.
  static std::shared_ptr<WorkdirLock> take(const std::string& workdir, const Processes& processes);

  /// Whether another process holds the lock of a folder.
  static bool is_held_elsewhere(const std::string& workdir);

  ~WorkdirLock();
  WorkdirLock(const WorkdirLock&) = delete;
  WorkdirLock& operator=(const WorkdirLock&) = delete;

  /// False if the file system does not support locks.
  bool is_taken() const;

 private:
  WorkdirLock();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace redco::io
