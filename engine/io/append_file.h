#pragma once

#include <string>
#include <string_view>

namespace redco::io {

/// Appends to a file in one write, so that data appended by several programs does not mix. Creates
/// the file if it is missing. Throws Error, with the path and the system's reason, if not all of it
/// can be written; then none of it stays in the file.
void append_to_file(const std::string& path, std::string_view bytes);

}  // namespace redco::io
