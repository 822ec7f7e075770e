#pragma once

#include <lua.hpp>

namespace redco::lua {

/// Adds to the table `redco.native` on top of the stack: `record_file(path, kind, text) ->
/// RecordFile` (of `text` instead of the file, if given), `token_file(path, dtype) -> TokenFile`,
/// `write_tokens(path, tensor, dtype)`, and `list_files(folder) -> list`, the paths of all files
/// below a folder, relative to it, sorted.
void add_data_files(lua_State* L);

}  // namespace redco::lua
