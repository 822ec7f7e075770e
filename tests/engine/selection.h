#pragma once

#include <cstdlib>

/// Whether REDCO_TEST_FULL=1 asks for every case, not for a selection.
inline bool runs_all() {
  static const char* const all = std::getenv("REDCO_TEST_FULL");
  return all && *all == '1';
}
