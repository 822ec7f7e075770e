#include "callbacks.h"

#include "values.h"

#include <redco/error.h>

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

Dataset make_dataset(const Ref& examples, const Ref& collate_fn, const std::string& name) {
  lua_State* L = examples.state();
  return balanced(L, [&]() -> Dataset {
    examples.push();
    int64_t size = check_list(L, lua_gettop(L), name);
    return {size, [examples, collate_fn](const std::vector<int64_t>& indices) {
              lua_State* state = examples.state();
              return balanced(state, [&] {
                luaL_checkstack(state, 6, "collate_fn");
                collate_fn.push();
                lua_createtable(state, static_cast<int>(indices.size()), 0);
                examples.push();
                for (size_t i = 0; i < indices.size(); ++i) {
                  lua_rawgeti(state, -1, static_cast<int>(indices[i]) + 1);
                  lua_rawseti(state, -3, static_cast<int>(i) + 1);
                }
                lua_pop(state, 1);
                call(state, 1, 1);
                require(lua_istable(state, -1),
                        "collate_fn: expected a table of tensors to be returned, got ",
                        described(state, -1));
                return check_tree(state, lua_gettop(state), "what collate_fn returned");
              });
            }};
  });
}

}  // namespace redco::lua
