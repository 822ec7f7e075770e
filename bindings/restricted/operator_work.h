#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>

namespace redco::lua {

/// Returns the steps of an operator: some for the call, and one for each 16 elements that it reads,
/// or writes to new tensors. If the time is not in proportion to these (products, convolutions,
/// decompositions, slow functions), operator_work.cpp has a formula. Views, and operators composed
/// of others, take only the steps of the call. The results are unknown before the call, so their
/// elements are counted after it.
int64_t steps_before(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);
int64_t steps_after(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> results);

}  // namespace redco::lua
