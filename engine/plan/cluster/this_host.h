#pragma once

#include <redco/cluster.h>

#include <c10/core/Device.h>

#include <string>
#include <vector>

namespace redco::plan {

/// The name of this machine's device, as the driver or /proc/cpuinfo gives it.
std::string this_device_name();

/// This machine with its GPUs or, without one, with `n_processes` on its CPU. `n_measuring`: how
/// many processes call this at the same time, each with its part of the CPU. Throws UsageError for
/// a GPU that the table lacks.
HostGroup this_host(int64_t n_processes, int64_t n_measuring = 1);

/// Bytes of a device's memory, of a CPU's the part of one of `n_processes`.
int64_t memory_of(c10::Device device, int64_t n_processes);

/// Waits until the device has computed everything.
void synchronize(c10::Device device);

double median(std::vector<double> values);

}  // namespace redco::plan
