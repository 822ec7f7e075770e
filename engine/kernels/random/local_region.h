#pragma once

#include "fill.h"

#include <redco/random.h>

namespace redco::random {

/// While it exists, random operators of this thread that draw from `rng` fill the local part of a
/// sharded tensor: `region` is the part of the logical tensor. Used around operators that run on
/// the local parts of their sharded arguments.
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

/// The numbers of the next draw of `rng`, a CounterGenerator, for a tensor.
Stream next_stream(const at::Tensor& tensor, const at::Generator& rng);

}  // namespace redco::random
