#pragma once

#include <redco/export.h>

#include <cstdint>
#include <string>

namespace redco {

/// The environment variable with the cores of a process: numbers such as "0,1", or "all".
constexpr const char* cores_variable = "REDCO_CORES";

/// The `part`th of `n` parts of this process's cores, for `cores_variable`. Cores that share a
/// processor, and hardware threads of one core, are in one part, if they fit. "all" if there are
/// fewer cores than parts, or this process's variable is "all".
///
/// Without a part of its own, a process that ends its wait for another one may find its core taken
/// by that one for milliseconds, while the other's core is idle.
REDCO_API std::string part_of_cores(int64_t part, int64_t n);

/// Lets this thread, and those that it starts, run on the cores of the variable alone. Throws
/// UsageError for a value that names no cores, or none that this process may use.
REDCO_API void keep_to_cores();

/// The cores that each process of this host has if there are `local_size`; 0 if they are fewer.
REDCO_API int64_t cores_per_process(int64_t local_size);

}  // namespace redco
