// The memory that GPU kernels need, and the bytes that they read and write inside: GpuCost::Bytes.
// The numbers are those of an H100.

#pragma once

#include <redco/export.h>

#include <ATen/core/ivalue.h>

namespace redco::sharding {

using Values = c10::ArrayRef<c10::IValue>;

REDCO_API int64_t workspace_of_convolution(Values arguments, Values results);
REDCO_API int64_t workspace_of_convolution_backward(Values arguments, Values results);
REDCO_API int64_t workspace_of_attention_backward(Values arguments, Values results);
REDCO_API int64_t workspace_of_sum(Values arguments, Values results);
REDCO_API int64_t inside_linear_cross_entropy(Values arguments, Values results);

}  // namespace redco::sharding
