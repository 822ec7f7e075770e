#include "operators.h"

#include "context.h"
#include "tensor.h"
#include "values.h"

#include <redco/error.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

namespace redco::lua {

namespace {

// Operators that change which memory a tensor stands for, and check nothing.
constexpr const char* withheld[] = {"set_", "set_data"};

struct Table {
  std::map<std::string, std::vector<c10::OperatorName>> names;
  std::map<std::string, std::unique_ptr<Operator>> operators;
  std::vector<std::string> sorted;
  std::mutex mutex;
};

Table& table() {
  static Table* result = [] {
    auto* made = new Table;  // lives as long as the dispatcher it describes
    constexpr std::string_view space = "aten::";
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames())
      if (name.name.starts_with(space)) made->names[name.name.substr(space.size())].push_back(name);
    for (const char* name : withheld) made->names.erase(name);
    for (const auto& [name, _] : made->names) made->sorted.push_back(name);
    return made;
  }();
  return *result;
}

// A table whose keys are strings holds named arguments.
bool is_named_table(lua_State* L, int index) {
  if (lua_type(L, index) != LUA_TTABLE || lua_objlen(L, index) > 0) return false;
  lua_pushnil(L);
  if (lua_next(L, index) == 0) return false;
  bool named = lua_type(L, -2) == LUA_TSTRING;
  lua_pop(L, 2);
  return named;
}

bool is_empty_table(lua_State* L, int index) {
  if (lua_type(L, index) != LUA_TTABLE) return false;
  lua_pushnil(L);
  if (lua_next(L, index) == 0) return true;
  lua_pop(L, 2);
  return false;
}

struct Choice {
  const Overload* overload = nullptr;
  Binding binding;
};

Choice choose(lua_State* L, const Operator& op, const Arguments& arguments) {
  Choice best;
  for (bool gather : {false, true}) {
    for (const Overload& overload : op.overloads) {
      int top = lua_gettop(L);
      Binding candidate = overload.bind(L, arguments, gather);
      if (candidate.cost >= 0 && (best.overload == nullptr || candidate.cost < best.binding.cost)) {
        best = {&overload, candidate};
        if (candidate.cost == 0) break;
      } else {
        lua_settop(L, top);
      }
    }
    if (best.overload != nullptr) break;
  }
  return best;
}

std::string given_arguments(lua_State* L, int n_args, int named) {
  std::string text;
  for (int i = 1; i <= n_args; ++i) text += (i > 1 ? ", " : "") + describe(L, i);
  if (named != 0) {
    std::map<std::string, std::string> entries;
    for (lua_pushnil(L); lua_next(L, named); lua_pop(L, 1))
      if (lua_type(L, -2) == LUA_TSTRING) entries[lua_tostring(L, -2)] = describe(L, lua_gettop(L));
    text += text.empty() ? "{" : ", {";
    for (const auto& [key, value] : entries)
      text += (text.back() == '{' ? "" : ", ") + key + " = " + value;
    text += "}";
  }
  return "(" + text + ")";
}

[[noreturn]] void fail_no_overload(lua_State* L, const Operator& op, int n_args, int named,
                                   bool is_method) {
  std::string text = (is_method ? "Tensor:" : "torch.") + op.name + ": no overload takes " +
                     given_arguments(L, n_args, named);
  std::set<std::string> known;
  for (const Overload& overload : op.overloads)
    for (const Parameter& parameter : overload.parameters()) known.insert(parameter.name);
  if (named != 0) {
    for (lua_pushnil(L); lua_next(L, named); lua_pop(L, 1)) {
      if (lua_type(L, -2) != LUA_TSTRING) continue;
      std::string key = lua_tostring(L, -2);
      if (known.count(key)) continue;
      std::string near = nearest(key, known);
      text +=
          "; it has no argument '" + key + "'" + (near.empty() ? "" : ": '" + near + "' is near");
    }
  }
  if (is_method && n_args > 0 && test_tensor(L, 1) == nullptr)
    text += "; a method is called with a colon: tensor:" + op.name + "(...)";
  text += "\ncandidates:";
  for (const Overload& overload : op.overloads)
    if (overload.callable()) text += "\n  " + overload.text();
  throw Error(text);
}

// `requires_grad` is no parameter of any schema: PyTorch's factories take it beside them.
std::optional<bool> take_requires_grad(lua_State* L, const Operator& op, int named) {
  bool is_factory = std::any_of(op.overloads.begin(), op.overloads.end(),
                                [](const Overload& overload) { return overload.is_factory(); });
  lua_getfield(L, named, "requires_grad");
  std::optional<bool> given;
  if (is_factory && lua_isboolean(L, -1)) given = lua_toboolean(L, -1) != 0;
  lua_pop(L, 1);
  return given;
}

// Several `out` tensors are given as a list and bound to the parameters in order: puts a table
// with one entry for each in place of the one at `named`.
void spread_out(lua_State* L, const Operator& op, int named) {
  lua_getfield(L, named, "out");
  if (lua_type(L, -1) == LUA_TTABLE && lua_objlen(L, -1) > 1) {
    size_t n_out = lua_objlen(L, -1);
    lua_newtable(L);
    for (lua_pushnil(L); lua_next(L, named); lua_pop(L, 1)) {
      lua_pushvalue(L, -2);
      lua_pushvalue(L, -2);
      lua_rawset(L, -5);
    }
    lua_replace(L, named);
    for (const Overload& overload : op.overloads) {
      std::vector<const Parameter*> out;
      for (const Parameter& parameter : overload.parameters())
        if (parameter.is_out) out.push_back(&parameter);
      if (out.size() != n_out || out[0]->kind != ArgKind::tensor) continue;
      lua_pushnil(L);
      lua_setfield(L, named, "out");
      for (size_t i = 0; i < n_out; ++i) {
        lua_rawgeti(L, -1, static_cast<int>(i) + 1);
        lua_setfield(L, named, out[i]->name.c_str());
      }
      break;
    }
  }
  lua_pop(L, 1);
}

template <bool is_method>
int operator_function(lua_State* L) {
  const auto* op = static_cast<const Operator*>(lua_touserdata(L, lua_upvalueindex(1)));
  return call_operator(L, *op, is_method);
}

}  // namespace

const Operator* find_operator(const std::string& name) {
  Table& all = table();
  std::lock_guard lock(all.mutex);
  auto known = all.operators.find(name);
  if (known != all.operators.end()) return known->second.get();
  auto found = all.names.find(name);
  if (found == all.names.end()) return nullptr;
  auto op = std::make_unique<Operator>();
  op->name = name;
  std::vector<c10::OperatorName> names = found->second;
  std::sort(names.begin(), names.end(),
            [](const auto& a, const auto& b) { return a.overload_name < b.overload_name; });
  for (const auto& overload : names)
    if (auto handle = c10::Dispatcher::singleton().findSchema(overload))
      op->overloads.emplace_back(*handle);
  // Where two overloads fit equally well the one with fewer parameters is meant.
  std::stable_sort(op->overloads.begin(), op->overloads.end(), [](const auto& a, const auto& b) {
    return a.parameters().size() < b.parameters().size();
  });
  return (all.operators[name] = std::move(op)).get();
}

const std::vector<std::string>& operator_names() { return table().sorted; }

bool push_operator(lua_State* L, const std::string& name, bool is_method) {
  const Operator* op = find_operator(name);
  if (op == nullptr) return false;
  lua_pushlightuserdata(L, const_cast<Operator*>(op));
  lua_pushcclosure(L, is_method ? operator_function<true> : operator_function<false>, 1);
  return true;
}

int call_operator(lua_State* L, const Operator& op, bool is_method) {
  int n_args = lua_gettop(L);
  Arguments arguments{n_args, 0, 0, is_method};
  std::optional<bool> requires_grad;
  if (n_args > 0 && is_named_table(L, n_args)) {
    arguments.named = n_args;
    arguments.n_positional = n_args - 1;
    lua_getfield(L, n_args, "out");
    bool has_out = !lua_isnil(L, -1);
    lua_pop(L, 1);
    if (has_out) spread_out(L, op, n_args);
    for (lua_pushnil(L); lua_next(L, n_args); lua_pop(L, 1)) ++arguments.n_named;
    requires_grad = take_requires_grad(L, op, n_args);
    if (requires_grad) --arguments.n_named;
  }
  luaL_checkstack(L, static_cast<int>(max_parameters) * 2, op.name.c_str());

  Choice best = choose(L, op, arguments);
  if (best.overload == nullptr && n_args > 0 && is_empty_table(L, n_args)) {
    // No list of nothing, but named arguments of which none is given.
    --arguments.n_positional;
    best = choose(L, op, arguments);
  }
  if (best.overload == nullptr)
    fail_no_overload(L, op, arguments.n_positional, arguments.named, is_method);

  int n_results;
  try {
    n_results = with_memory_retry(L, [&] { return best.overload->call(L, best.binding); });
    if (requires_grad) check_tensor(L, lua_gettop(L)).set_requires_grad(*requires_grad);
  } catch (const c10::Error& error) {
    fail(is_method ? "Tensor:" : "torch.", op.name, ": ", text_of(error), "\ngiven: ", given_arguments(L, arguments.n_positional, arguments.named));
  }
  return n_results;
}

}  // namespace redco::lua
