#pragma once

#include <redco/mesh.h>

#include <cstdint>
#include <optional>
#include <string>

namespace redco::mesh {

/// The text of an environment variable; null if it is not set or empty.
const char* find_variable(const char* name);
/// Its value as an integer, `otherwise` if not set. Throws UsageError unless it is an integer of at
/// least `least`.
int64_t variable(const char* name, int64_t otherwise, int64_t least);

/// Reads the rank and size from the variables of the program that started the processes: torchrun
/// (and redco-lua's own launcher), mpirun or srun. None if there are none. An address or port in
/// `stated` is that of the store, unless the store is already open; otherwise the address stays
/// empty if the variables do not provide it.
std::optional<Processes> find_scheduler(const ProcessOptions& stated);

}  // namespace redco::mesh
