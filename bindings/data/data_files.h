#pragma once

#include <lua.hpp>

namespace redco::lua {

/// Adds to the table `redco.native` on top of the stack: `record_file(path, kind, text,
/// delimiter = ",") -> RecordFile` (reads `text` instead of the file, if given), `token_file(path,
/// dtype) -> TokenFile`, `byte_file(path, kind) -> ByteFile`, `parquet_file(path, columns,
/// max_memory) -> ParquetFile`, `zip_archive(path) -> table`, `write_tokens(path, tensor, dtype)`,
/// and `list_files(folder) -> list`, the sorted relative paths of all files below a folder.
void add_data_files(lua_State* L);

}  // namespace redco::lua
