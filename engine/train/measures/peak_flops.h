#pragma once

#include <redco/export.h>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace redco::train {

/// The peak FLOP/s of a device in matrix products of a dtype. On the CPU it is measured, once for
/// each dtype in about 0.2 s; for a GPU it is taken from its data sheet, for dense matrices. None
/// for GPUs that are not in the table.
///
/// A CPU that other programs use gives too low a peak. If a model was seen to reach more FLOP/s,
/// `reached`, the peak is measured again, up to three times, and is the highest of these.
REDCO_API std::optional<double> peak_flops(c10::Device device, c10::ScalarType dtype,
                                           double reached = 0);

}  // namespace redco::train
