// Reports a deleted current folder. MKL would end the process with a misleading message while
// LibTorch is loaded, before main; functions in .preinit_array run before any library's.
//
// Seen with the MKL in LibTorch 2.11.0, and by others:
// https://github.com/InternLM/lmdeploy/issues/2258. tests/program/workdir_spec.lua fails when MKL
// no longer needs this.

#include "is_off.h"

#include <unistd.h>

#include <cerrno>
#include <climits>

namespace {

void check_current_folder(int, char**, char** environment) {
  if (redco::is_off(environment, "current_folder")) return;
  char folder[PATH_MAX];
  if (getcwd(folder, sizeof(folder)) != nullptr || errno != ENOENT) return;
  constexpr char text[] =
      "redco-lua: the current folder no longer exists: change to another one and run again\n";
  (void)!write(STDERR_FILENO, text, sizeof(text) - 1);
  constexpr int wrong_usage = 2;
  _exit(wrong_usage);
}

using Function = void (*)(int, char**, char**);
[[gnu::section(".preinit_array"), gnu::used]] constexpr Function first = check_current_folder;

}  // namespace
