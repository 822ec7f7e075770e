#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>

namespace redco::lua {

/// How many steps an operator takes: some for the call, and one for each 16 elements that it reads
/// or, of new tensors, writes. Where the time is not in proportion to those (products,
/// convolutions, decompositions, slow functions) operator_work.cpp has a formula. What others
/// consist of, and views, take those of the call alone. Before the call its results are not known:
/// they are counted after it.
int64_t steps_before(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);
int64_t steps_after(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> results);

}  // namespace redco::lua
