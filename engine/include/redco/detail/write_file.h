#pragma once

#include <redco/export.h>

#include <string>
#include <string_view>

namespace redco {

/// Writes a file atomically: an earlier file of this name is replaced at once, or kept if the new
/// one can't be written. Throws Error with the path and the system's reason, and if the path is a
/// folder or a device.
REDCO_API void write_file(const std::string& path, std::string_view bytes);

}  // namespace redco
