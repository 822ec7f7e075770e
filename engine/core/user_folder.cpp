// The user's folders according to XDG.

#include <redco/detail/user_folder.h>

#include <cstdlib>

namespace redco {

std::string user_folder(const char* variable, const char* below_home) {
  const char* folder = std::getenv(variable);
  if (folder != nullptr && folder[0] == '/') return folder;
  const char* home = std::getenv("HOME");
  return home == nullptr ? "" : std::string(home) + below_home;
}

}  // namespace redco
