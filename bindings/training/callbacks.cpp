// Examples, collate_fn and other callbacks of the training classes.

#include "callbacks.h"

#include "collate_workers.h"
#include "state/tensor.h"
#include "state/values.h"

#include <redco/error.h>
#include <redco/random.h>

#include <algorithm>
#include <numeric>

namespace redco::lua {

int64_t check_list(lua_State* L, int index, const std::string& what) {
  require(lua_istable(L, index), what, ": expected a list, got ", described(L, index));
  return int64_t(lua_objlen(L, index));
}

void check_parameter_order(const Ref& function, const std::string& what,
                           const std::vector<std::string>& order) {
  lua_State* L = function.state();
  std::string expected;
  for (const std::string& name : order) expected += (expected.empty() ? "" : ", ") + name;
  balanced(L, [&] {
    function.push();
    const char* given;
    for (size_t i = 0; i < order.size() && (given = lua_getlocal(L, nullptr, int(i) + 1)); ++i) {
      // A function may use the name `state` for another argument, such as its observation.
      auto place = std::ranges::find(order, given == std::string("train_rng") ? "rng" : given);
      require(place == order.end() || place == order.begin() + long(i) || *place == "state", what,
              ": its argument ", i + 1, " is ", order[i], ", but the function names it ", given,
              ": write function(", expected, ")");
    }
  });
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

MathRandom::MathRandom(lua_State* L) {
  if (!WithRng::current().defined()) return;
  int top = lua_gettop(L);
  lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
  lua_getfield(L, -1, LUA_MATHLIBNAME);
  lua_getfield(L, -1, "randomseed");
  // LuaJIT keeps the state of math.random in a userdata shared by its functions.
  if (lua_iscfunction(L, -1) && lua_getupvalue(L, -1, 1) && lua_isuserdata(L, -1)) {
    state_ = static_cast<char*>(lua_touserdata(L, -1));
    before_.assign(state_, state_ + lua_objlen(L, -1));
    lua_pop(L, 1);
    // 2^53 seeds; each micro-batch of a step has a different one.
    auto first = counter_generator(WithRng::current())->batch().first;
    auto seed = fold_in(WithRng::current(), uint64_t(first)).current_seed();
    lua_pushnumber(L, double(seed >> 11));
    lua_call(L, 1, 0);
  }
  lua_settop(L, top);
}

MathRandom::~MathRandom() {
  if (state_) std::copy(before_.begin(), before_.end(), state_);
}

Examples::Examples(lua_State* L, int index, const std::string& name) : value_(L, index) {
  balanced(L, [&] {
    value_.push();
    int value = lua_gettop(L);
    is_list_ = !luaL_getmetafield(L, value, "__len");
    if (test_tensor(L, value)) first_ = 0;
    if (is_list_) {
      require(lua_istable(L, value), name, ": expected a list or a data set, got ",
              described(L, value));
      size_ = int64_t(lua_objlen(L, value));
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
  lua_createtable(L, int(indices.size()), 0);
  int list = lua_gettop(L);
  value_.push();
  for (size_t i = 0; i < indices.size(); ++i) {
    if (is_list_) {
      lua_rawgeti(L, list + 1, int(indices[i]) + 1);
    } else {
      lua_pushcfunction(L, get_example);
      lua_pushvalue(L, list + 1);
      push_integer(L, indices[i] + first_);
      call(L, 2, 1);
    }
    lua_rawseti(L, list, int(i) + 1);
  }
  lua_settop(L, list);
}

void Examples::push_head(int64_t size) const {
  if (is_list_ && size == size_) return value_.push();
  std::vector<int64_t> indices(size_t(size), 0);
  std::iota(indices.begin(), indices.end(), 0);
  push(indices);
}

Dataset make_dataset(const Examples& examples, const Ref& collate_fn) {
  return {examples.size(), [examples, collate_fn](const std::vector<int64_t>& indices) {
            lua_State* L = collate_fn.state();
            return balanced(L, [&] {
              MathRandom math_random(L);
              luaL_checkstack(L, 6, "collate_fn");
              collate_fn.push();
              examples.push(indices);
              call(L, 1, 1);
              require(lua_istable(L, -1),
                      "collate_fn: expected a table of tensors to be returned, got ",
                      described(L, -1), lua_isnil(L, -1) ? "; does it lack a `return`?" : "");
              return check_tree(L, lua_gettop(L), "what collate_fn returned");
            });
          }};
}

namespace {

// Reads context_dims: dimensions by the paths of tensors, or false.
ContextDims check_context_dims(NamedArguments& args) {
  lua_State* L = args.state();
  return balanced(L, [&] {
    ContextDims dims;
    args.push("context_dims");
    if (lua_isnil(L, -1)) return dims;
    const std::string what = args.function() + ": context_dims";
    require(lua_istable(L, -1), what, ": expected a table of dimensions by name, got ",
            described(L, lua_gettop(L)));
    for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) {
      require(lua_type(L, -2) == LUA_TSTRING, what, ": the key ", described(L, lua_gettop(L) - 1),
              " is not the name of a tensor of the batch");
      auto dim = test_integer(L, lua_gettop(L));
      bool is_none = lua_isboolean(L, -1) && !lua_toboolean(L, -1);
      require(is_none || dim.value_or(0) > 0, what, ".", lua_tostring(L, -2),
              ": expected the dimension of the positions, from 1, or false, got ",
              described(L, lua_gettop(L)));
      dims[lua_tostring(L, -2)] = dim;
    }
    return dims;
  });
}

}  // namespace

Collator check_collator(NamedArguments& args) {
  Collator collator{args.required<Ref>("collate_fn"), nullptr, check_context_dims(args)};
  auto num_workers = args.get<int64_t>("num_workers", 0);
  auto prefetch_factor = args.get<int64_t>("prefetch_factor", 2);
  require(num_workers >= 0 && num_workers <= 1024, args.function(), ": num_workers = ", num_workers,
          " is not from 0 to 1024");
  require(prefetch_factor > 0, args.function(), ": prefetch_factor = ", prefetch_factor,
          " must be positive");
  if (num_workers > 0)
    collator.workers = std::make_shared<CollateWorkers>(collator.function, num_workers,
                                                        prefetch_factor, args.function());
  return collator;
}

Dataset make_dataset(const Examples& examples, const Collator& collator) {
  Dataset dataset = collator.workers ? collator.workers->dataset(examples)
                                     : make_dataset(examples, collator.function);
  dataset.context_dims = collator.context_dims;
  return dataset;
}

}  // namespace redco::lua
