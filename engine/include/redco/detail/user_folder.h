#pragma once

#include <redco/export.h>

#include <string>

namespace redco {

/// The folder that an XDG variable names, else that one below the user's home, "/.config"; empty
/// where there is neither (https://specifications.freedesktop.org/basedir-spec).
REDCO_API std::string user_folder(const char* variable, const char* below_home);

}  // namespace redco
