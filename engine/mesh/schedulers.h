#pragma once

#include <redco/mesh.h>

#include <cstdint>
#include <optional>
#include <string>

namespace redco {

/// The text of a variable of the environment; null where it is not set, or empty.
const char* find_variable(const char* name);
/// Its number, of at least `least`. Throws UsageError when it is none.
int64_t variable(const char* name, int64_t otherwise, int64_t least);

/// Where the variables of the program that started this process among others place it: torchrun
/// (and redco-lua's own launcher), mpirun, srun. None: nobody did. Where `stated` has an address or
/// a port the store is there, unless it is open already; without one its address stays empty where
/// the variables do not tell it.
std::optional<Processes> find_scheduler(const ProcessOptions& stated);

}  // namespace redco
