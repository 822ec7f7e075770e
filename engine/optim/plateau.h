#pragma once

#include <redco/optim.h>
#include <redco/schedule.h>
#include <redco/tree.h>

namespace redco::train {

/// The state of a PlateauOptions before the first evaluation: plain numbers, so that no step waits
/// for a device to read the learning rate.
Tree first_state(const PlateauOptions& options);

/// The learning rate that `state` holds.
double rate_of(const Tree& state);

/// Counts an evaluation. Throws Error if `metrics` lacks the metric.
void observe(const PlateauOptions& options, const Metrics& metrics, Tree& state);

}  // namespace redco::train
