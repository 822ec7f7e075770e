#pragma once

#include <redco/export.h>

#include <string>

namespace redco {

/// Short texts that the processes of a run exchange outside the collectives, for work that runs
/// alongside training. Thread-safe.
class REDCO_API Notes {
 public:
  virtual ~Notes() = default;

  /// Returns the key prefix of the next exchange. All processes call it before each exchange.
  virtual std::string next_exchange() = 0;
  /// Stores a text under a key. Each key may be used once.
  virtual void leave(const std::string& key, const std::string& text) = 0;
  /// Waits for the text of a key. Throws Error, which begins with `what`, if a process of the run
  /// failed or is gone.
  virtual std::string await(const std::string& key, const std::string& what) = 0;
};

}  // namespace redco
