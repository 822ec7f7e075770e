#pragma once

#include <redco/export.h>

#include <cstdint>
#include <string>
#include <vector>

namespace redco {

/// The environment variable with the cores of a process: numbers such as "0,1", or "all".
constexpr const char* cores_variable = "REDCO_CORES";

/// Divides this process's cores among `n` processes; returns the value of `cores_variable` for
/// each. Cores of one processor, and hardware threads of one core, stay together where possible.
/// All values are "all" if there are fewer cores than processes, or if this process's is "all".
///
/// If processes share all cores, Linux may run two of them on one core while another core is idle.
/// A process whose wait for a collective has ended then waits for its core for milliseconds.
REDCO_API std::vector<std::string> divided_cores(int64_t n);

/// Lets this thread, and those that it starts, run on the cores of the variable alone. Throws
/// UsageError for a value that names no cores, or none that this process may use.
REDCO_API void keep_to_cores();

/// The cores that each process of this host has if there are `local_size`; 0 if they are fewer.
REDCO_API int64_t cores_per_process(int64_t local_size);

}  // namespace redco
