#pragma once

#include <string>
#include <string_view>

namespace redco {

/// Appends to a file, which is made where there is none, in one write: pieces that several programs
/// append do not mix. Throws Error, with the path and the system's reason, when not all of it can
/// be written; then nothing of it stays in the file.
void append_to_file(const std::string& path, std::string_view bytes);

}  // namespace redco
