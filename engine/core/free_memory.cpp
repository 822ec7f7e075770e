#include <redco/detail/free_memory.h>

#include <malloc.h>

// Of gperftools' malloc_extension_c.h; null unless the program uses its malloc.
extern "C" [[gnu::weak]] void MallocExtension_ReleaseFreeMemory();

namespace redco {

void return_free_memory() {
  malloc_trim(0);
  if (MallocExtension_ReleaseFreeMemory != nullptr) MallocExtension_ReleaseFreeMemory();
}

}  // namespace redco
