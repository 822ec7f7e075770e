#pragma once

#include "call_plan.h"

#include <string_view>

namespace redco::sharding {

/// Marks the running operator call: collectives are logged under its name, and with
/// REDCO_CHECK_SPMD=1 the call itself is logged (see mesh/spmd_log.h).
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
