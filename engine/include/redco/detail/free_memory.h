// Memory that the process has freed and its malloc keeps.
#pragma once

namespace redco {

/// Returns the pages to the system. It works with glibc's malloc and with tcmalloc.
void return_free_memory();

}  // namespace redco
