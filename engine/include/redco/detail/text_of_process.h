#pragma once

#include <redco/export.h>
#include <redco/mesh.h>

#include <cstdint>
#include <string>

namespace redco::mesh {

/// Broadcasts the text of one process to all; the texts of the others are ignored.
REDCO_API std::string text_of_process(const Mesh& mesh, int64_t process, const std::string& text);

}  // namespace redco::mesh
