#pragma once

#include "fill.h"

#include <redco/random.h>

namespace redco {

/// While it lives, random operators of this thread that draw from `rng` fill the local tensor of a
/// sharded one: `region` is what it holds of the logical tensor. What runs an operator on the
/// locals of its sharded arguments makes one around it.
class REDCO_API LocalRegion {
 public:
  LocalRegion(at::Generator rng, Region region);
  ~LocalRegion();
  LocalRegion(const LocalRegion&) = delete;
  LocalRegion& operator=(const LocalRegion&) = delete;

 private:
  WithRng with_rng_;
  Region region_;
  const Region* outer_;
};

}  // namespace redco
