// The order in which the keys of a table are visited.

#include "table_order.h"

#include "state/context.h"
#include "state/values.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_set>
#include <utility>

namespace redco::lua {

namespace {

// Fields of the metatable: the list of names in order, and the set of null names. A removed name
// stays in the list, and a name that was added again occurs twice: its last position counts. A list
// that is empty or has nulls has its length instead of the names.
constexpr const char* keys_field = "__keys";
constexpr const char* nulls_field = "__nulls";
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

// Whether `next` visits the table at `table` in the order of `pairs`: ascending numbers and at most
// one other key, the last.
bool is_sorted(lua_State* L, int table) {
  std::optional<double> last;
  bool has_other = false;
  for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) {
    if (has_other || (lua_type(L, -2) == LUA_TNUMBER && last && lua_tonumber(L, -2) < *last)) {
      lua_pop(L, 2);
      return false;
    }
    if (lua_type(L, -2) == LUA_TNUMBER)
      last = lua_tonumber(L, -2);
    else
      has_other = true;
  }
  return true;
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

// Makes the iterator of `pairs`. It is written in Lua because LuaJIT does not compile calls of C
// functions.
constexpr const char* make_iterator = R"(
local rawget = rawget
return function(t, keys)
  local i = 0
  return function()
    local key, value
    repeat
      i = i + 1
      key = keys[i]
      if key == nil then return nil end
      value = rawget(t, key)
    until value ~= nil
    return key, value
  end
end
)";

// pairs(table); its upvalues are `next` and the function of make_iterator.
int pairs(lua_State* L) {
  if (!lua_istable(L, 1))
    return luaL_error(L, "bad argument #1 to 'pairs' (table expected, got %s)",
                      luaL_typename(L, 1));
  lua_settop(L, 1);
  if (is_sorted(L, 1)) {
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_pushvalue(L, 1);
    lua_pushnil(L);
    return 3;
  }
  lua_pushvalue(L, lua_upvalueindex(2));
  lua_pushvalue(L, 1);
  push_keys(L, 1);
  take_steps(context(L), int64_t(lua_objlen(L, -1)));
  lua_call(L, 2, 1);
  return 1;
}

}  // namespace

void open_pairs(lua_State* L) {
  lua_getglobal(L, "next");
  if (luaL_loadbuffer(L, make_iterator, std::strlen(make_iterator), "=pairs") != 0)
    throw take_error(L);
  lua_call(L, 0, 1);
  lua_pushcclosure(L, pairs, 2);
  lua_setglobal(L, "pairs");
}

std::vector<Name> names_of(lua_State* L, int table) {
  std::vector<Name> names;
  for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1))
    if (lua_type(L, -2) == LUA_TSTRING) names.push_back({view_of(L, -2), false});
  std::ranges::sort(names, {}, &Name::text);
  push_meta(L, table, nulls_field);
  push_meta(L, table, keys_field);
  int order = lua_gettop(L), nulls = order - 1;
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

int64_t remembered_length(lua_State* L, int table) {
  push_meta(L, table, keys_field);
  int64_t length = lua_isnumber(L, -1) ? int64_t(lua_tointeger(L, -1)) : -1;
  lua_pop(L, 1);
  return length;
}

void set_null(lua_State* L, std::string_view name) {
  lua_getmetatable(L, -1);
  lua_getfield(L, -1, nulls_field);
  if (!lua_istable(L, -1)) {
    lua_pop(L, 1);
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_setfield(L, -3, nulls_field);
  }
  lua_pushlstring(L, name.data(), name.size());
  lua_pushboolean(L, true);
  lua_rawset(L, -3);
  lua_pop(L, 2);
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
}

}  // namespace redco::lua
