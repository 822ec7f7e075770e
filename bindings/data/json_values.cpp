// JSON values as Lua tables that keep the order of keys and nulls.

#include "json_values.h"

#include "state/context.h"
#include "state/values.h"

#include <redco/error.h>

#include <algorithm>
#include <string>
#include <unordered_set>
#include <vector>

namespace redco::lua {

namespace {

// Fields of the metatable: the list of keys in order, and the set of null keys. A removed key stays
// in the list, and a key that was added again occurs twice: its last position counts. A list that
// is empty or has nulls has its length instead of the keys.
constexpr const char* keys_field = "__keys";
constexpr const char* nulls_field = "__nulls";
// The metamethod in the registry: a single function object, which copy_value finds by identity.
constexpr const char* newindex_field = "redco.ordered_newindex";

void push_string(lua_State* L, const std::string& text) {
  lua_pushlstring(L, text.data(), text.size());
}

std::string string_at(lua_State* L, int index) {
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

// Sets the metatable of the table on top of the stack; `push` pushes the list of keys.
template <class Push>
void set_order(lua_State* L, Push push_keys) {
  lua_createtable(L, 0, 2);
  push_keys();
  lua_setfield(L, -2, keys_field);
  lua_getfield(L, LUA_REGISTRYINDEX, newindex_field);
  lua_setfield(L, -2, "__newindex");
  lua_setmetatable(L, -2);
}

// Marks a key of the table on top of the stack as null.
void set_null(lua_State* L, const std::string& key) {
  lua_getmetatable(L, -1);
  lua_getfield(L, -1, nulls_field);
  if (!lua_istable(L, -1)) {
    lua_pop(L, 1);
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_setfield(L, -3, nulls_field);
  }
  push_string(L, key);
  lua_pushboolean(L, true);
  lua_rawset(L, -3);
  lua_pop(L, 2);
}

struct Key {
  std::string name;
  bool is_null;
};

// Returns the keys of a table of named entries, in order. Raises an error for keys that are not
// strings.
std::vector<Key> keys_of(lua_State* L, int table, const std::string& where) {
  std::vector<std::string> names;
  for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) {
    require(lua_type(L, -2) == LUA_TSTRING, where, " has a key that is ", described(L, -2),
            ": keys are strings, or 1 to n");
    names.push_back(string_at(L, -2));
  }
  std::sort(names.begin(), names.end());
  push_meta(L, table, nulls_field);
  push_meta(L, table, keys_field);
  int order = lua_gettop(L), nulls = order - 1;
  std::vector<Key> keys;
  if (lua_istable(L, order)) {
    std::unordered_set<std::string> seen;
    for (size_t i = lua_objlen(L, order); i-- > 0;) {
      lua_rawgeti(L, order, int(i) + 1);
      std::string name = string_at(L, -1);
      lua_pushvalue(L, -1);
      lua_rawget(L, table);
      bool is_there = !lua_isnil(L, -1), is_null = false;
      lua_pop(L, 1);
      if (!is_there && lua_istable(L, nulls)) {
        lua_rawget(L, nulls);
        is_null = !lua_isnil(L, -1);
      }
      lua_pop(L, 1);
      if ((is_there || is_null) && seen.insert(name).second) keys.push_back({name, is_null});
    }
    std::reverse(keys.begin(), keys.end());
    std::erase_if(names, [&](const std::string& name) { return seen.count(name) != 0; });
  }
  lua_pop(L, 2);
  // Keys set by rawset, without the metatable.
  for (std::string& name : names) keys.push_back({std::move(name), false});
  return keys;
}

std::string join(const std::string& path, const std::string& key) {
  return path.empty() ? key : path + "." + key;
}

// Returns the number of entries of the list at `table`. Sets `is_list` if the table is marked as a
// list, which counts nulls.
size_t length_of(lua_State* L, int table, bool& is_list) {
  push_meta(L, table, keys_field);
  is_list = lua_isnumber(L, -1) != 0;
  size_t length = is_list ? size_t(lua_tointeger(L, -1)) : lua_objlen(L, table);
  lua_pop(L, 1);
  if (!is_list) return length;
  for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) {
    if (lua_type(L, -2) == LUA_TSTRING) is_list = false;
    auto index = test_integer(L, -2);
    if (index && *index > 0) length = std::max(length, size_t(*index));
  }
  return is_list ? length : lua_objlen(L, table);
}

Json json_at(lua_State* L, int index, const char* what, const std::string& path, int depth);

Json table_at(lua_State* L, int table, const char* what, const std::string& path, int depth) {
  luaL_checkstack(L, 8, "a deeply nested table");
  auto where = [&] { return "the table at '" + path + "' of " + what; };
  bool is_list = false;
  if (size_t length = length_of(L, table, is_list); length > 0 || is_list) {
    Json::List list;
    for (size_t i = 1; i <= length; ++i) {
      lua_rawgeti(L, table, int(i));
      list.push_back(json_at(L, lua_gettop(L), what, join(path, std::to_string(i)), depth + 1));
      lua_pop(L, 1);
    }
    size_t n_keys = 0, n_nulls = 0;
    for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) ++n_keys;
    for (const Json& entry : list) n_nulls += entry.get<std::monostate>() != nullptr;
    require(n_keys + n_nulls == length && (is_list || n_nulls == 0), where(),
            " has both list entries and named ones: make it one or the other");
    return list;
  }
  std::vector<Key> keys = keys_of(L, table, where());
  Json::Object object;
  for (Key& key : keys) {
    Json value;
    if (!key.is_null) {
      push_string(L, key.name);
      lua_rawget(L, table);
      value = json_at(L, lua_gettop(L), what, join(path, key.name), depth + 1);
      lua_pop(L, 1);
    }
    object.emplace_back(std::move(key.name), std::move(value));
  }
  return object;
}

Json json_at(lua_State* L, int index, const char* what, const std::string& path, int depth) {
  require(depth < 200, what, " is nested more than 200 deep at '", path,
          "': does a table contain itself?");
  switch (lua_type(L, index)) {
    case LUA_TNIL:
      return {};
    case LUA_TBOOLEAN:
      return lua_toboolean(L, index) != 0;
    case LUA_TSTRING:
      return string_at(L, index);
    case LUA_TTABLE:
      return table_at(L, index, what, path, depth);
    default:
      break;
  }
  if (auto integer = test_integer(L, index)) return *integer;
  if (lua_type(L, index) == LUA_TNUMBER) return double(lua_tonumber(L, index));
  fail("expected a number, string, boolean or table at '", path, "' of ", what, ", got ",
       describe(L, index));
}

int push_ordered_table(lua_State* L) {
  lua_newtable(L);
  set_order(L, [&] { lua_newtable(L); });
  return 1;
}

int push_ordered_keys(lua_State* L) {
  std::vector<Key> keys = keys_of(L, 1, "ordered_keys: the table");
  lua_createtable(L, int(keys.size()), 0);
  int n = 0;
  for (const Key& key : keys) {
    if (key.is_null) continue;
    push_string(L, key.name);
    lua_rawseti(L, -2, ++n);
  }
  return 1;
}

// table, key
int add_null(lua_State* L) {
  std::string key = string_at(L, 2);
  push_meta(L, 1, keys_field);
  push_string(L, key);
  lua_rawseti(L, -2, int(lua_objlen(L, -2)) + 1);
  lua_settop(L, 1);
  set_null(L, key);
  return 0;
}

}  // namespace

void push_json(lua_State* L, const Json& value) {
  luaL_checkstack(L, 8, "a deeply nested value");
  if (auto object = value.get<Json::Object>()) {
    lua_createtable(L, 0, int(object->size()));
    for (const auto& [key, entry] : *object) {
      push_string(L, key);
      push_json(L, entry);
      lua_rawset(L, -3);
    }
    set_order(L, [&] {
      lua_createtable(L, int(object->size()), 0);
      for (size_t i = 0; i < object->size(); ++i) {
        push_string(L, (*object)[i].first);
        lua_rawseti(L, -2, int(i) + 1);
      }
    });
    for (const auto& [key, entry] : *object)
      if (entry.get<std::monostate>()) set_null(L, key);
  } else if (auto list = value.get<Json::List>()) {
    lua_createtable(L, int(list->size()), 0);
    for (size_t i = 0; i < list->size(); ++i) {
      push_json(L, (*list)[i]);
      lua_rawseti(L, -2, int(i) + 1);
    }
    bool has_nulls = std::any_of(list->begin(), list->end(), [](const Json& entry) {
      return entry.get<std::monostate>() != nullptr;
    });
    if (list->empty() || has_nulls)
      set_order(L, [&] { lua_pushinteger(L, static_cast<lua_Integer>(list->size())); });
  } else if (auto text = value.get<std::string>()) {
    push_string(L, *text);
  } else if (auto integer = value.get<int64_t>()) {
    push_integer(L, *integer);
  } else if (auto real = value.get<double>()) {
    lua_pushnumber(L, *real);
  } else if (auto boolean = value.get<bool>()) {
    lua_pushboolean(L, *boolean);
  } else {
    lua_pushnil(L);
  }
}

Json check_json(lua_State* L, int index, const char* what) {
  int absolute = index < 0 ? lua_gettop(L) + index + 1 : index;
  return json_at(L, absolute, what, "", 0);
}

void add_ordered_tables(lua_State* L) {
  const std::pair<const char*, lua_CFunction> functions[] = {
      {"ordered_table", push_ordered_table},
      {"ordered_keys", push_ordered_keys},
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
