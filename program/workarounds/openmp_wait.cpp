// Limits how long OpenMP's threads spin at a barrier before they sleep.
//
// By default GNU's OpenMP spins for milliseconds. If other programs use the cores, a thread then
// spins while the one it waits for has no core, and small models train ten times slower. Measured
// with an MLP on two cores, in steps/s on a quiet machine and beside four busy loops: 1640 and 4 by
// default, 1600 and 20 with 10000 spins, 1550 and 60 with 3000, 1000 and 120 with 300. libgomp
// reads its settings from the environment when it is loaded, before `main`, so the program starts
// itself again with the variable set. This happens before the constructors of LibTorch, which are
// nearly all of the time of a start.
//
// libgomp documents the variable, https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html;
// of its cost, https://github.com/pytorch/pytorch/issues/57715. tests/program/openmp_spec.lua fails
// when libgomp's default is no more than this.

#include "is_off.h"

#include <elf.h>
#include <unistd.h>
#include <cstddef>

namespace {

constexpr const char* setting = "GOMP_SPINCOUNT=3000";
constexpr const char* variables[] = {"GOMP_SPINCOUNT=", "OMP_WAIT_POLICY="};

bool starts_with(const char* text, const char* start) {
  while (*start != 0 && *text == *start) ++text, ++start;
  return *start == 0;
}

// Whether the kernel has loaded this program itself. After `ld.so PROGRAM`, /proc/self/exe is
// ld.so. `after_environment` is the auxiliary vector.
bool is_own_executable(char** after_environment) {
  for (auto entry = reinterpret_cast<const Elf64_auxv_t*>(after_environment);
       entry->a_type != AT_NULL; ++entry)
    if (entry->a_type == AT_BASE) return entry->a_un.a_val != 0;
  return false;
}

// Runs before any library is initialised, even libc, so it uses only system calls and the stack. A
// failed restart is no error: the default remains.
__attribute__((no_sanitize("address", "thread", "undefined"))) void limit_spinning(
    int, char** arguments, char** environment) {
  if (redco::is_off(environment, "openmp_wait")) return;
  size_t n = 0;
  for (; environment[n] != nullptr; ++n)
    for (const char* variable : variables)
      if (starts_with(environment[n], variable)) return;
  if (!is_own_executable(environment + n + 1)) return;
  constexpr size_t most = 4096;
  const char* changed[most + 2];
  if (n > most) return;
  for (size_t i = 0; i < n; ++i) changed[i] = environment[i];
  changed[n] = setting;
  changed[n + 1] = nullptr;
  execve("/proc/self/exe", arguments, const_cast<char**>(changed));
}

using Function = void (*)(int, char**, char**);
__attribute__((section(".preinit_array"), used)) const Function before_libraries = limit_spinning;

}  // namespace
