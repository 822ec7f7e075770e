// Copies Lua values from one state to another.

#include "copy_value.h"

#include "null.h"
#include "object.h"
#include "tensor.h"
#include "values.h"

#include <redco/error.h>
#include <redco/sharding.h>

#include <cstring>
#include <unordered_map>
#include <utility>
#include <vector>

namespace redco::lua {

namespace {

using Names = std::vector<std::string>;  // a module's name, followed by those of nested fields

// The loaded modules of a state, and the functions and tables in them, by identity.
class LoadedValues {
 public:
  explicit LoadedValues(lua_State* L) : L_(L) {
    balanced(L, [&] {
      lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
      add_fields({}, 0);
      add_fields({}, 2);
    });
  }

  const Names* find(const void* value) const {
    auto found = names_.find(value);
    return found == names_.end() ? nullptr : &found->second;
  }

 private:
  // Adds the fields of the table on top of the stack and of `n_levels` levels below it.
  void add_fields(const Names& path, int n_levels) {
    luaL_checkstack(L_, 4, "names of modules");
    int table = lua_gettop(L_);
    for (lua_pushnil(L_); lua_next(L_, table); lua_pop(L_, 1)) {
      if (lua_type(L_, -2) != LUA_TSTRING || (!lua_istable(L_, -1) && !lua_isfunction(L_, -1)))
        continue;
      Names names = path;
      names.emplace_back(lua_tostring(L_, -2));
      // Globals count only if every state has them. `package` holds the modules again.
      bool is_global = names[0] == "_G" && names.size() > 1;
      if (names[0] == "package" && names.size() > 1) continue;
      if (is_global && !lua_iscfunction(L_, -1)) continue;
      names_.emplace(lua_topointer(L_, -1), names);
      if (n_levels > 0 && lua_istable(L_, -1)) add_fields(names, n_levels - 1);
    }
  }

  lua_State* L_;
  std::unordered_map<const void*, Names> names_;
};

int append_to_string(lua_State*, const void* bytes, size_t size, void* text) {
  static_cast<std::string*>(text)->append(static_cast<const char*>(bytes), size);
  return 0;
}

class Copier {
 public:
  Copier(lua_State* from, lua_State* to, std::string what)
      : from_(from), to_(to), what_(std::move(what)), loaded_(from) {
    lua_newtable(to_);
    copies_ = lua_gettop(to_);
  }

  // Pushes a copy of the value at the absolute index `index`.
  void copy(int index) {
    luaL_checkstack(from_, 8, "a deeply nested value");
    luaL_checkstack(to_, 8, "a deeply nested value");
    switch (lua_type(from_, index)) {
      case LUA_TNIL:
        lua_pushnil(to_);
        break;
      case LUA_TBOOLEAN:
        lua_pushboolean(to_, lua_toboolean(from_, index));
        break;
      case LUA_TNUMBER:
        lua_pushnumber(to_, lua_tonumber(from_, index));
        break;
      case LUA_TSTRING: {
        size_t size = 0;
        const char* text = lua_tolstring(from_, index, &size);
        lua_pushlstring(to_, text, size);
        break;
      }
      case LUA_TLIGHTUSERDATA:
        if (!is_null(from_, index)) refuse("is a light userdata");
        push_null(to_);
        break;
      case type_cdata: {
        auto integer = test_integer(from_, index);
        if (!integer) refuse("is a cdata");
        push_integer(to_, *integer);
        break;
      }
      default:
        copy_object(index);
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& is_what) const {
    std::string way;
    for (const std::string& step : way_) way += (way.empty() ? ": " : " -> ") + step;
    fail(what_, way, " ", is_what,
         ". Workers have separate Lua states. Numbers, strings, booleans, tables and functions are "
         "copied to them; tensors, tokenizers and data sets are shared");
  }

  template <class Body>
  void at(std::string step, Body body) {
    if (way_.size() == 150) refuse("is nested too deeply");
    way_.push_back(std::move(step));
    body();
    way_.pop_back();
  }

  // Copies a value with an identity; further references to it get the same copy.
  void copy_object(int index) {
    const void* identity = lua_topointer(from_, index);
    lua_pushlightuserdata(to_, const_cast<void*>(identity));
    lua_rawget(to_, copies_);
    if (!lua_isnil(to_, -1)) return;
    lua_pop(to_, 1);
    if (const Names* names = loaded_.find(identity)) {
      push_loaded(*names);
      return remember(identity);
    }
    switch (lua_type(from_, index)) {
      case LUA_TTABLE:
        return copy_table(index, identity);
      case LUA_TFUNCTION:
        if (lua_iscfunction(from_, index)) refuse("is a C function that belongs to no module");
        return copy_function(index, identity);
      case LUA_TUSERDATA:
        return copy_userdata(index, identity);
      default:
        refuse(std::string("is a ") +
               (lua_isthread(from_, index) ? "coroutine" : luaL_typename(from_, index)));
    }
  }

  // Records the copy on top of `to_`.
  void remember(const void* identity) {
    lua_pushlightuserdata(to_, const_cast<void*>(identity));
    lua_pushvalue(to_, -2);
    lua_rawset(to_, copies_);
  }

  void push_loaded(const Names& names) {
    lua_getfield(to_, LUA_GLOBALSINDEX, "require");
    lua_pushlstring(to_, names[0].data(), names[0].size());
    call(to_, 1, 1);
    for (size_t i = 1; i < names.size(); ++i) {
      lua_getfield(to_, -1, names[i].c_str());
      lua_remove(to_, -2);
      if (lua_isnil(to_, -1))
        refuse("is '" + names[i] + "' of the module '" + names[0] +
               "', which does not have it when loaded again");
    }
  }

  void copy_table(int index, const void* identity) {
    lua_createtable(to_, int(lua_objlen(from_, index)), 0);
    remember(identity);
    for (lua_pushnil(from_); lua_next(from_, index); lua_pop(from_, 1)) {
      int value = lua_gettop(from_);
      auto copy_field = [&] {
        copy(value - 1);
        copy(value);
        lua_rawset(to_, -3);
      };
      // Plain fields, which are most, need no name for errors.
      if (lua_type(from_, value - 1) <= LUA_TSTRING && lua_type(from_, value) <= LUA_TSTRING)
        copy_field();
      else
        at(field_name(value - 1), copy_field);
    }
    copy_metatable(index);
  }

  std::string field_name(int key) const {
    if (lua_type(from_, key) == LUA_TSTRING)
      return "field '" + std::string(lua_tostring(from_, key)) + "'";
    return "entry " + (lua_isnumber(from_, key) ? std::to_string(lua_tointeger(from_, key))
                                                : describe(from_, key));
  }

  void copy_metatable(int index) {
    if (!lua_getmetatable(from_, index)) return;
    at("metatable", [&] { copy(lua_gettop(from_)); });
    lua_setmetatable(to_, -2);
    lua_pop(from_, 1);
  }

  void copy_function(int index, const void* identity) {
    std::string code;
    lua_pushvalue(from_, index);
    lua_dump(from_, append_to_string, &code);
    lua_pop(from_, 1);
    // This process produced the bytecode, so it is safe to load; the chunk keeps its name.
    if (luaL_loadbufferx(to_, code.data(), code.size(), "", "b") != 0) throw take_error(to_);
    remember(identity);
    copy_environment(index);
    int copied = lua_gettop(to_);
    for (int n = 1; const char* name = lua_getupvalue(from_, index, n); ++n) {
      void* upvalue = lua_upvalueid(from_, index, n);
      auto [first, is_new] = upvalues_.emplace(upvalue, std::pair(identity, n));
      if (is_new) {
        at(std::string("upvalue '") + name + "'", [&] { copy(lua_gettop(from_)); });
        lua_setupvalue(to_, copied, n);
      } else {
        lua_pushlightuserdata(to_, const_cast<void*>(first->second.first));
        lua_rawget(to_, copies_);
        lua_upvaluejoin(to_, copied, n, -1, first->second.second);
        lua_pop(to_, 1);
      }
      lua_pop(from_, 1);
    }
  }

  // Maps the globals of one state to those of the other, and likewise for this library's files.
  void copy_environment(int index) {
    lua_getfenv(from_, index);
    lua_rawgeti(from_, LUA_REGISTRYINDEX, slot_own_globals);
    bool is_own = lua_rawequal(from_, -1, -2);
    lua_pop(from_, 1);
    if (is_own) {
      lua_rawgeti(to_, LUA_REGISTRYINDEX, slot_own_globals);
      lua_setfenv(to_, -2);
    } else if (!lua_rawequal(from_, -1, LUA_GLOBALSINDEX)) {
      at("environment", [&] { copy(lua_gettop(from_)); });
      lua_setfenv(to_, -2);
    }
    lua_pop(from_, 1);
  }

  void copy_userdata(int index, const void* identity) {
    if (at::Tensor* tensor = test_tensor(from_, index)) {
      if (is_sharded(*tensor)) refuse("is a tensor that is split over processes");
      push_tensor(to_, *tensor, 0);
      return remember(identity);
    }
    if (test_generator(from_, index))
      refuse(
          "is a Generator, whose numbers would depend on the workers; omit it, and operators draw "
          "from the generator of the batch");
    if (luaL_getmetafield(from_, index, "__share")) {
      auto share = reinterpret_cast<ShareObject>(lua_touserdata(from_, -1));
      lua_pop(from_, 1);
      lua_getfield(to_, LUA_GLOBALSINDEX, "require");  // registers the object's type
      lua_pushliteral(to_, "redco.native");
      call(to_, 1, 0);
      share(from_, index, to_);
      return remember(identity);
    }
    // A userdata of newproxy has only a metatable.
    if (lua_objlen(from_, index) != 0) refuse("is a " + described_type(index));
    lua_newuserdata(to_, 0);
    remember(identity);
    copy_metatable(index);
  }

  // A type's __tostring is its name.
  std::string described_type(int index) const {
    std::string type = "userdata";
    if (luaL_callmeta(from_, index, "__tostring")) {
      if (lua_isstring(from_, -1)) type = lua_tostring(from_, -1);
      lua_pop(from_, 1);
    }
    return type;
  }

  lua_State* from_;
  lua_State* to_;
  std::string what_;
  LoadedValues loaded_;
  int copies_;  // a table in `to_`: identity -> copy
  // The function and index at which each upvalue was first seen.
  std::unordered_map<void*, std::pair<const void*, int>> upvalues_;
  std::vector<std::string> way_;
};

}  // namespace

void copy_value(lua_State* from, int index, lua_State* to, const std::string& what) {
  int top = lua_gettop(from);
  Copier copier(from, to, what);
  copier.copy(index > 0 ? index : top + index + 1);
  lua_remove(to, -2);  // the table of copies
  lua_settop(from, top);
}

}  // namespace redco::lua
