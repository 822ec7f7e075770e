#pragma once

#include <cstdint>
#include <lua.hpp>
#include <string_view>
#include <vector>

namespace redco::lua {

/// Replaces the global `pairs` by one that visits every table in the same order on all processes:
/// numbers in ascending order, then names, then other keys. Names are sorted by their bytes, or in
/// the order that the table remembers. LuaJIT's own order of names differs between processes, so a
/// loop that communicates would combine tensors of different names. A key that is set during the
/// loop is not visited.
void open_pairs(lua_State* L);

struct Name {
  std::string_view text;  // until the table changes
  bool is_null;
};

/// Returns the names among the keys of the table at the absolute index `table`, in the order of
/// visits, and those that stand for JSON nulls.
std::vector<Name> names_of(lua_State* L, int table);

/// Pops the list of a table's names in their order. The table, which is then on top of the stack,
/// remembers it. Names that are set later come last.
void remember_keys(lua_State* L);

/// Marks the empty table on top of the stack as a list, not an object.
void remember_list(lua_State* L);

/// Whether the table at the absolute index `table` was marked as a list.
bool is_remembered_list(lua_State* L, int table);

/// Marks a name of the table on top of the stack as a JSON null.
void set_null(lua_State* L, std::string_view name);

/// Marks the number at the key on top of the stack, which is popped, as a real one: Lua has only
/// one type of numbers, and JSON tells 2.0 from 2. The table is below the key.
void set_real(lua_State* L);
/// Marks all numbers of the list on top of the stack.
void set_all_real(lua_State* L);
/// Returns whether the number at the key on top of the stack is marked so in the table at the
/// absolute index `table`. Pops the key.
bool is_real(lua_State* L, int table);

/// Adds to the table on top of the stack: `ordered_table() -> table`, empty, which remembers its
/// order; `ordered_null(table, key)`, which appends a null; `ordered_newindex`, the metamethod.
void add_ordered_tables(lua_State* L);

}  // namespace redco::lua
