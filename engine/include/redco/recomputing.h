#pragma once

#include <redco/export.h>

namespace redco {

/// While it lives, this thread computes what it has computed before, as backward does for a
/// function whose results were not kept: that is no work of the model, and is not counted as its.
class REDCO_API Recomputing {
 public:
  Recomputing();
  ~Recomputing();
  Recomputing(const Recomputing&) = delete;
  Recomputing& operator=(const Recomputing&) = delete;

 private:
  bool outer_;
};

}  // namespace redco
