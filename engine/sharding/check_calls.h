#pragma once

#include "plan.h"

#include <string_view>

namespace redco::sharding {

/// While a call of an operator runs: collectives are recorded as its own, and with
/// REDCO_CHECK_SPMD=1 so is the call (see mesh/spmd_log.h).
class InCall {
 public:
  explicit InCall(const Call& call);
  ~InCall();
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;

 private:
  std::string_view outer_;
};

}  // namespace redco::sharding
