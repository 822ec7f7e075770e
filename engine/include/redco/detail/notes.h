#pragma once

#include <redco/export.h>

#include <string>

namespace redco {

/// Short texts that the processes of a run leave for each other, outside the collectives: for what
/// runs beside the training. To be used on any thread.
class REDCO_API Notes {
 public:
  virtual ~Notes() = default;

  /// What the keys of one exchange begin with: all processes call it before each.
  virtual std::string next_exchange() = 0;
  /// Each key once.
  virtual void leave(const std::string& key, const std::string& text) = 0;
  /// Waits until it is there. Throws Error, which begins with `what`, when a process of the run
  /// failed or is gone.
  virtual std::string await(const std::string& key, const std::string& what) = 0;
};

}  // namespace redco
