// JSON values as Lua tables that keep the order of keys and nulls.

#include "json_values.h"

#include "state/context.h"
#include "state/null.h"
#include "state/values.h"
#include "table_order.h"

#include <redco/error.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace redco::lua {

namespace {

std::string string_at(lua_State* L, int index) {
  size_t size = 0;
  const char* bytes = lua_tolstring(L, index, &size);
  return {bytes, size};
}

std::string join(const std::string& path, const std::string& key) {
  return path.empty() ? key : path + "." + key;
}

// Whether the table at `table` was read from an empty list and has got no named entries.
bool was_empty_list(lua_State* L, int table) {
  bool is_list = is_remembered_list(L, table);
  for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1))
    if (lua_type(L, -2) == LUA_TSTRING) is_list = false;
  return is_list;
}

Json json_at(lua_State* L, int index, const char* what, const std::string& path, int depth);

// Returns the entry of `table` at the key on top of the stack, which is popped.
Json entry_at(lua_State* L, int table, const char* what, const std::string& path, int depth) {
  lua_pushvalue(L, -1);
  lua_rawget(L, table);
  lua_insert(L, -2);
  bool is_number = lua_type(L, -2) == LUA_TNUMBER;
  Json value = is_real(L, table) && is_number ? Json(double(lua_tonumber(L, -1)))
                                              : json_at(L, lua_gettop(L), what, path, depth);
  lua_pop(L, 1);
  return value;
}

Json table_at(lua_State* L, int table, const char* what, const std::string& path, int depth) {
  luaL_checkstack(L, 8, "a deeply nested table");
  auto where = [&] { return "the table at '" + path + "' of " + what; };
  if (size_t length = lua_objlen(L, table); length > 0 || was_empty_list(L, table)) {
    Json::List list;
    for (size_t i = 1; i <= length; ++i) {
      lua_pushinteger(L, lua_Integer(i));
      list.push_back(entry_at(L, table, what, join(path, std::to_string(i)), depth + 1));
    }
    size_t n_keys = 0;
    for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) ++n_keys;
    require(n_keys == length, where(),
            " has both list entries and named ones, or entries after a hole: make it one or the "
            "other, and write redco.null for a null");
    return list;
  }
  for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1))
    require(lua_type(L, -2) == LUA_TSTRING, where(), " has a key that is ", described(L, -2),
            ": keys are strings, or 1 to n");
  Json::Object object;
  for (const Name& name : names_of(L, table)) {
    std::string key(name.text);
    Json value;
    if (!name.is_null) {
      push_string(L, key);
      value = entry_at(L, table, what, join(path, key), depth + 1);
    }
    object.emplace_back(std::move(key), std::move(value));
  }
  return object;
}

Json json_at(lua_State* L, int index, const char* what, const std::string& path, int depth) {
  require(depth < 200, what, " is nested more than 200 deep at '", path,
          "': does a table contain itself?");
  switch (lua_type(L, index)) {
    case LUA_TNIL:
      return {};
    case LUA_TLIGHTUSERDATA:
      if (is_null(L, index)) return {};
      break;
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

// Whether a number is real in JSON and whole in Lua.
bool is_whole_real(const Json& value) {
  const auto* real = value.get<double>();
  return real != nullptr && std::floor(*real) == *real;
}

// Marks the whole real numbers of the list on top of the stack.
void mark_reals(lua_State* L, const Json::List& list) {
  if (std::none_of(list.begin(), list.end(), is_whole_real)) return;
  bool has_others = std::any_of(list.begin(), list.end(),
                                [](const Json& entry) { return entry.get<int64_t>() != nullptr; });
  if (!has_others) return set_all_real(L);
  for (size_t i = 0; i < list.size(); ++i) {
    if (!is_whole_real(list[i])) continue;
    lua_pushinteger(L, lua_Integer(i) + 1);
    set_real(L);
  }
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
    lua_createtable(L, int(object->size()), 0);
    for (size_t i = 0; i < object->size(); ++i) {
      push_string(L, (*object)[i].first);
      lua_rawseti(L, -2, int(i) + 1);
    }
    remember_keys(L);
    for (const auto& [key, entry] : *object) {
      if (entry.get<std::monostate>()) set_null(L, key);
      if (!is_whole_real(entry)) continue;
      push_string(L, key);
      set_real(L);
    }
  } else if (auto list = value.get<Json::List>()) {
    lua_createtable(L, int(list->size()), 0);
    for (size_t i = 0; i < list->size(); ++i) {
      if ((*list)[i].get<std::monostate>())
        push_null(L);
      else
        push_json(L, (*list)[i]);
      lua_rawseti(L, -2, int(i) + 1);
    }
    if (list->empty()) remember_list(L);
    mark_reals(L, *list);
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

}  // namespace redco::lua
