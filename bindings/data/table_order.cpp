// The order in which the keys of a table are visited.

#include "table_order.h"

#include "state/context.h"
#include "state/values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_set>
#include <utility>

namespace redco::lua {

namespace {

// Fields of the metatable: the list of names in order, the set of null names, and the set of keys
// whose whole numbers are real ones in JSON, or true if all are. A removed name stays in the list,
// and a name that was added again occurs twice: its last position counts. A list that was empty has
// `true` instead of the names.
constexpr const char* keys_field = "__keys";
constexpr const char* nulls_field = "__nulls";
constexpr const char* reals_field = "__reals";
// In the registry: the metatable of all lists whose numbers are all real.
constexpr const char* real_list_field = "redco.real_list";
// The metamethod in the registry: a single function object, which copy_value finds by identity.
constexpr const char* newindex_field = "redco.ordered_newindex";

std::string_view view_of(lua_State* L, int index) {
  size_t size = 0;
  const char* bytes = lua_tolstring(L, index, &size);
  return {bytes, size};
}

// Pushes a field of the metatable of the table at `index`; nil if there is none.
void push_meta(lua_State* L, int index, const char* field) {
  if (!lua_getmetatable(L, index)) {
    lua_pushnil(L);
    return;
  }
  lua_pushstring(L, field);
  lua_rawget(L, -2);
  lua_remove(L, -2);
}

// Pushes a set in the metatable of the table on top of the stack; makes either if it is missing.
void push_set(lua_State* L, const char* field) {
  if (!lua_getmetatable(L, -1)) {
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_setmetatable(L, -3);
  }
  lua_getfield(L, -1, field);
  if (!lua_istable(L, -1)) {
    lua_pop(L, 1);
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_setfield(L, -3, field);
  }
  lua_remove(L, -2);
}

// __newindex(table, key, value)
int ordered_newindex(lua_State* L) {
  lua_settop(L, 3);
  if (lua_type(L, 2) == LUA_TSTRING) {
    push_meta(L, 1, nulls_field);
    bool was_null = false;
    if (lua_istable(L, -1)) {
      lua_pushvalue(L, 2);
      lua_rawget(L, -2);
      was_null = !lua_isnil(L, -1);
      lua_pop(L, 1);
      lua_pushvalue(L, 2);
      lua_pushnil(L);
      lua_rawset(L, -3);
    }
    push_meta(L, 1, keys_field);
    if (!was_null && !lua_isnil(L, 3) && lua_istable(L, -1)) {
      lua_pushvalue(L, 2);
      lua_rawseti(L, -2, int(lua_objlen(L, -2)) + 1);
    }
    lua_settop(L, 3);
  }
  lua_rawset(L, 1);
  return 0;
}

int push_ordered_table(lua_State* L) {
  lua_newtable(L);
  lua_newtable(L);
  remember_keys(L);
  return 1;
}

// table, key
int add_null(lua_State* L) {
  push_meta(L, 1, keys_field);
  lua_pushvalue(L, 2);
  lua_rawseti(L, -2, int(lua_objlen(L, -2)) + 1);
  lua_pushvalue(L, 1);
  set_null(L, view_of(L, 2));
  return 0;
}

// Returns n if the keys of the table at `table` are 1 to n, else -1.
int length_of_list(lua_State* L, int table) {
  const auto length = static_cast<lua_Number>(lua_objlen(L, table));
  int n = 0;
  for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1), ++n) {
    const bool is_number = lua_type(L, -2) == LUA_TNUMBER;
    const lua_Number key = is_number ? lua_tonumber(L, -2) : 0;
    if (key < 1 || key > length || key != std::floor(key)) {
      lua_pop(L, 2);
      return -1;
    }
  }
  return n == int(length) ? n : -1;
}

// Pushes the list of the keys of the table at `table`, in order.
void push_keys(lua_State* L, int table) {
  std::vector<double> numbers;
  int n_others = 0;
  for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) {
    int type = lua_type(L, -2);
    if (type == LUA_TNUMBER) numbers.push_back(lua_tonumber(L, -2));
    if (type != LUA_TNUMBER && type != LUA_TSTRING) ++n_others;
  }
  std::sort(numbers.begin(), numbers.end());
  std::vector<Name> names = names_of(L, table);
  lua_createtable(L, int(numbers.size() + names.size()) + n_others, 0);
  int keys = lua_gettop(L), n = 0;
  for (double number : numbers) {
    lua_pushnumber(L, number);
    lua_rawseti(L, keys, ++n);
  }
  for (const Name& name : names) {
    if (name.is_null) continue;
    lua_pushlstring(L, name.text.data(), name.text.size());
    lua_rawseti(L, keys, ++n);
  }
  if (n_others == 0) return;
  for (bool key : {false, true}) {
    lua_pushboolean(L, key);
    lua_rawseti(L, keys, ++n);
  }
  for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) {
    int type = lua_type(L, -2);
    if (type == LUA_TNUMBER || type == LUA_TSTRING || type == LUA_TBOOLEAN) continue;
    lua_pushvalue(L, -2);
    lua_rawseti(L, keys, ++n);
  }
}

// Makes the iterator of `pairs`: it visits the keys in the list `keys`, or 1 to n without it. It is
// written in Lua because LuaJIT does not compile calls of C functions. It is never `next`: if a
// loop gets `next` first and another function later, LuaJIT rewrites the loop's instruction, and
// the outer runs of a recursive loop may then never end. LuaJIT's commits 119fd1fa and 27f169c6 fix
// such errors, but Debian 12's version has neither.
constexpr const char* make_iterator = R"(
local rawget = rawget
return function(t, n, keys)
  local i = 0
  return function()
    while i < n do
      i = i + 1
      local key = i
      if keys then key = keys[i] end
      local value = rawget(t, key)
      if value ~= nil then return key, value end
    end
  end
end
)";

// pairs(table); its upvalue is the function of make_iterator.
int pairs(lua_State* L) {
  if (!lua_istable(L, 1))
    return luaL_error(L, "bad argument #1 to 'pairs' (table expected, got %s)",
                      luaL_typename(L, 1));
  lua_settop(L, 1);
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_pushvalue(L, 1);
  int n = length_of_list(L, 1);
  lua_pushinteger(L, n);
  if (n < 0) {
    push_keys(L, 1);
    n = int(lua_objlen(L, -1));
    lua_pushinteger(L, n);
    lua_replace(L, -3);
  } else {
    lua_pushnil(L);
  }
  take_instructions(context(L), n);
  lua_call(L, 3, 1);
  return 1;
}

}  // namespace

void open_pairs(lua_State* L) {
  if (luaL_loadbuffer(L, make_iterator, std::strlen(make_iterator), "=pairs") != 0)
    throw take_error(L);
  lua_call(L, 0, 1);
  lua_pushcclosure(L, pairs, 1);
  lua_setglobal(L, "pairs");
}

std::vector<Name> names_of(lua_State* L, int table) {
  std::vector<Name> names;
  for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1))
    if (lua_type(L, -2) == LUA_TSTRING) names.push_back({view_of(L, -2), false});
  push_meta(L, table, nulls_field);
  push_meta(L, table, keys_field);
  int order = lua_gettop(L), nulls = order - 1;
  if (lua_istable(L, nulls) && !lua_istable(L, order)) {
    for (lua_pushnil(L); lua_next(L, nulls); lua_pop(L, 1)) {
      lua_pushvalue(L, -2);
      lua_rawget(L, table);
      if (lua_isnil(L, -1)) names.push_back({view_of(L, -3), true});
      lua_pop(L, 1);
    }
  }
  std::ranges::sort(names, {}, &Name::text);
  if (lua_istable(L, order)) {
    std::vector<Name> remembered;
    std::unordered_set<std::string_view> seen;
    for (size_t i = lua_objlen(L, order); i-- > 0;) {
      lua_rawgeti(L, order, int(i) + 1);
      std::string_view text = view_of(L, -1);
      lua_pushvalue(L, -1);
      lua_rawget(L, table);
      bool is_there = !lua_isnil(L, -1), is_null = false;
      lua_pop(L, 1);
      if (!is_there && lua_istable(L, nulls)) {
        lua_rawget(L, nulls);
        is_null = !lua_isnil(L, -1);
      }
      lua_pop(L, 1);
      if ((is_there || is_null) && seen.insert(text).second) remembered.push_back({text, is_null});
    }
    std::ranges::reverse(remembered);
    // Last, the names that were set by rawset, without the metatable.
    for (const Name& name : names)
      if (!seen.contains(name.text)) remembered.push_back(name);
    names = std::move(remembered);
  }
  lua_pop(L, 2);
  return names;
}

void remember_keys(lua_State* L) {
  lua_createtable(L, 0, 2);
  lua_insert(L, -2);
  lua_setfield(L, -2, keys_field);
  lua_getfield(L, LUA_REGISTRYINDEX, newindex_field);
  lua_setfield(L, -2, "__newindex");
  lua_setmetatable(L, -2);
}

void remember_list(lua_State* L) {
  lua_pushboolean(L, 1);
  remember_keys(L);
}

bool is_remembered_list(lua_State* L, int table) {
  push_meta(L, table, keys_field);
  bool is_list = lua_isboolean(L, -1);
  lua_pop(L, 1);
  return is_list;
}

void set_null(lua_State* L, std::string_view name) {
  push_set(L, nulls_field);
  lua_pushlstring(L, name.data(), name.size());
  lua_pushboolean(L, true);
  lua_rawset(L, -3);
  lua_pop(L, 1);
}

void set_real(lua_State* L) {
  lua_pushvalue(L, -2);
  push_set(L, reals_field);
  lua_pushvalue(L, -3);
  lua_pushboolean(L, true);
  lua_rawset(L, -3);
  lua_pop(L, 3);
}

void set_all_real(lua_State* L) {
  lua_getfield(L, LUA_REGISTRYINDEX, real_list_field);
  lua_setmetatable(L, -2);
}

bool is_real(lua_State* L, int table) {
  push_meta(L, table, reals_field);
  bool result = lua_isboolean(L, -1);
  if (lua_istable(L, -1)) {
    lua_pushvalue(L, -2);
    lua_rawget(L, -2);
    result = lua_toboolean(L, -1);
    lua_pop(L, 1);
  }
  lua_pop(L, 2);
  return result;
}

void add_ordered_tables(lua_State* L) {
  const std::pair<const char*, lua_CFunction> functions[] = {
      {"ordered_table", push_ordered_table},
      {"ordered_null", add_null},
      {"ordered_newindex", ordered_newindex}};
  for (auto [name, function] : functions) {
    lua_pushcfunction(L, function);
    lua_setfield(L, -2, name);
  }
  lua_getfield(L, -1, "ordered_newindex");
  lua_setfield(L, LUA_REGISTRYINDEX, newindex_field);
  lua_newtable(L);
  lua_pushboolean(L, true);
  lua_setfield(L, -2, reals_field);
  lua_setfield(L, LUA_REGISTRYINDEX, real_list_field);
}

}  // namespace redco::lua
