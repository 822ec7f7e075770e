#pragma once

#include <redco/export.h>

#include <string>

namespace redco {

/// The folder that an XDG variable names, else the one below the user's home, such as "/.config";
/// empty if there is neither (https://specifications.freedesktop.org/basedir-spec).
REDCO_API std::string user_folder(const char* variable, const char* below_home);

}  // namespace redco
