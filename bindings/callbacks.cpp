#include "callbacks.h"

#include "values.h"

#include <redco/error.h>

#include <numeric>

namespace redco::lua {

int64_t check_list(lua_State* L, int index, const std::string& what) {
  require(lua_istable(L, index), what, ": expected a list, got ", described(L, index));
  return static_cast<int64_t>(lua_objlen(L, index));
}

Collate check_collate(NamedArguments& args) {
  auto name = args.get<std::string>("collate", "global");
  require(name == "global" || name == "local", args.function(), ": collate = \"", name,
          "\" is not one of \"global\" and \"local\"");
  return name == "local" ? Collate::local : Collate::global;
}

namespace {

int get_example(lua_State* L) {
  lua_gettable(L, 1);
  return 1;
}

}  // namespace

Examples::Examples(lua_State* L, int index, const std::string& name) : value_(L, index) {
  balanced(L, [&] {
    value_.push();
    int value = lua_gettop(L);
    is_list_ = !luaL_getmetafield(L, value, "__len");
    if (is_list_) {
      require(lua_istable(L, value), name, ": expected a list or a data set, got ",
              described(L, value));
      size_ = static_cast<int64_t>(lua_objlen(L, value));
    } else {
      lua_pushvalue(L, value);
      call(L, 1, 1);
      size_ = check_integer(L, -1, (name + ": its length").c_str());
      require(size_ >= 0, name, ": its length is ", size_);
    }
  });
}

void Examples::push(const std::vector<int64_t>& indices) const {
  lua_State* L = value_.state();
  luaL_checkstack(L, 8, "examples");
  lua_createtable(L, static_cast<int>(indices.size()), 0);
  int list = lua_gettop(L);
  value_.push();
  for (size_t i = 0; i < indices.size(); ++i) {
    if (is_list_) {
      lua_rawgeti(L, list + 1, static_cast<int>(indices[i]) + 1);
    } else {
      lua_pushcfunction(L, get_example);
      lua_pushvalue(L, list + 1);
      push_integer(L, indices[i] + 1);
      call(L, 2, 1);
    }
    lua_rawseti(L, list, static_cast<int>(i) + 1);
  }
  lua_settop(L, list);
}

void Examples::push_head(int64_t size) const {
  if (size == size_) return value_.push();
  std::vector<int64_t> indices(static_cast<size_t>(size));
  std::iota(indices.begin(), indices.end(), 0);
  push(indices);
}

Dataset make_dataset(const Examples& examples, const Ref& collate_fn) {
  return {examples.size(), [examples, collate_fn](const std::vector<int64_t>& indices) {
            lua_State* L = collate_fn.state();
            return balanced(L, [&] {
              luaL_checkstack(L, 6, "collate_fn");
              collate_fn.push();
              examples.push(indices);
              call(L, 1, 1);
              require(lua_istable(L, -1),
                      "collate_fn: expected a table of tensors to be returned, got ",
                      described(L, -1));
              return check_tree(L, lua_gettop(L), "what collate_fn returned");
            });
          }};
}

}  // namespace redco::lua
