#pragma once

#include <cstddef>
#include <string>

namespace redco::io {

/// Registers the mapping of a file for the handler of SIGBUS (redco/mapped_files.h). A mapping must
/// be removed before its memory is unmapped.
void add_mapping(const void* begin, size_t size, const std::string& path);
void remove_mapping(const void* begin);

}  // namespace redco::io
