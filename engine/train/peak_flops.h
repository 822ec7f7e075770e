#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace redco {

/// The floating-point operations a second that a device can do in matrix products of a type: on the
/// CPU what products reach here and now, measured once for each type in some 0.2 s; of a GPU what
/// its data sheet says, for dense matrices. Nothing for GPUs that are not in the table.
std::optional<double> peak_flops(c10::Device device, c10::ScalarType dtype);

}  // namespace redco
