#pragma once

namespace redco::testing {

/// From now on the memory of each tensor on the CPU lies between two pages that nobody may touch,
/// at the end of its own: what is read or written outside of it ends the process. Bytes that the
/// alignment leaves behind the end are looked at when it is freed; more than 256 MB are refused.
void guard_allocations();

}  // namespace redco::testing
