// Turns the workarounds of this folder off.

#pragma once

namespace redco {

/// Whether the variable REDCO_WITHOUT of `environment` has this name: a list with commas of file
/// names in this folder, such as event_wait,openmp_wait, and of tensor_heap. Needs nothing of
/// libc, since some workarounds run before it is initialised.
__attribute__((no_sanitize("address", "thread", "undefined"))) inline bool is_off(
    char** environment, const char* name) {
  // Returns the rest of `text` after `start`, or null if `text` does not begin with `start`.
  auto after = [](const char* text, const char* start)
                   __attribute__((no_sanitize("address", "thread", "undefined")))
                       ->const char* {
    while (*start != 0 && *text == *start) ++text, ++start;
    return *start == 0 ? text : nullptr;
  };
  for (; *environment != nullptr; ++environment) {
    const char* list = after(*environment, "REDCO_WITHOUT=");
    while (list != nullptr && *list != 0) {
      const char* end = after(list, name);
      if (end != nullptr && (*end == 0 || *end == ',')) return true;
      while (*list != 0 && *list++ != ',') continue;
    }
  }
  return false;
}

}  // namespace redco
