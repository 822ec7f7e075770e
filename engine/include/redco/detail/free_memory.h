// Memory that the process has freed and still holds.
#pragma once

#include <redco/export.h>

namespace redco {

/// Returns the pages to the system: those of glibc, of tcmalloc and of the heap of tensors.
REDCO_API void return_free_memory();

}  // namespace redco
