#pragma once

#include <lua.hpp>

namespace redco::lua {

/// Sets in the table `redco.native` on top of the stack: `record_file(path, kind, text) ->
/// RecordFile` (of the text, where one is given), `token_file(path, dtype) -> TokenFile`,
/// `write_tokens(path, tensor, dtype)`, and `list_files(folder) -> list`, the paths of all files
/// below a folder, relative to it, sorted.
void add_data_files(lua_State* L);

}  // namespace redco::lua
