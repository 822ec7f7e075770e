// ATen operators as Lua functions: looks them up, chooses an overload and calls it.

#include "operators.h"

#include "argument_checks.h"
#include "state/collector.h"
#include "state/context.h"
#include "state/tensor.h"
#include "state/values.h"

#include <redco/error.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

namespace redco::lua {

namespace {

struct OperatorTable {
  std::map<std::string, std::vector<c10::OperatorName>> names;
  std::map<std::string, std::unique_ptr<OverloadSet>> operators;
  std::vector<std::string> sorted;
  std::mutex mutex;
};

OperatorTable& operator_table() {
  static OperatorTable* result = [] {
    auto* made = new OperatorTable;  // never freed, like the dispatcher
    constexpr std::string_view space = "aten::";
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames())
      if (name.name.starts_with(space)) made->names[name.name.substr(space.size())].push_back(name);
    std::erase_if(made->names, [](const auto& entry) { return is_withheld(entry.first); });
    for (const auto& [name, _] : made->names) made->sorted.push_back(name);
    return made;
  }();
  return *result;
}

// Whether a table holds named arguments: its keys are strings.
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

Choice choose(lua_State* L, const OverloadSet& op, const Arguments& arguments) {
  Choice best;
  for (bool gather : {false, true}) {
    for (const Overload& overload : op.overloads) {
      Binding candidate = overload.bind(L, arguments, gather);
      if (candidate.cost < 0) continue;
      if (best.overload == nullptr || candidate.cost < best.binding.cost)
        best = {&overload, candidate};
      if (candidate.cost == 0) break;
    }
    if (best.overload != nullptr) break;
  }
  return best;
}

std::string given_arguments(lua_State* L, const Arguments& arguments) {
  std::string text;
  for (int i = 1; i <= arguments.n_positional; ++i) text += (i > 1 ? ", " : "") + describe(L, i);
  if (arguments.n_named > 0) {
    std::map<std::string, std::string> entries;
    for (int i = 0; i < arguments.n_named; ++i)
      entries[arguments.named[i].name] = describe(L, arguments.named[i].index);
    text += text.empty() ? "{" : ", {";
    for (const auto& [key, value] : entries)
      text += (text.back() == '{' ? "" : ", ") + key + " = " + value;
    text += "}";
  }
  return "(" + text + ")";
}

// Whether a value is a table with both positions and names.
bool is_mixed(lua_State* L, int index) {
  if (!lua_istable(L, index) || lua_objlen(L, index) == 0) return false;
  for (lua_pushnil(L); lua_next(L, index); lua_pop(L, 1)) {
    if (lua_type(L, -2) != LUA_TSTRING) continue;
    lua_pop(L, 2);
    return true;
  }
  return false;
}

// Raises an error if a named argument is a misspelt dtype or device.
void check_names_of_types(lua_State* L, const OverloadSet& op, const Arguments& arguments) {
  for (int i = 0; i < arguments.n_named; ++i) {
    const auto& [name, index] = arguments.named[i];
    if (lua_type(L, index) != LUA_TSTRING) continue;
    std::string value = lua_tostring(L, index);
    require(std::strcmp(name, "dtype") != 0 || parse_dtype(value), "torch.", op.name,
            ": dtype = ", unknown_dtype(value));
    require(std::strcmp(name, "device") != 0 || parse_device(value), "torch.", op.name,
            ": device = \"", value, "\" is not one of \"cpu\", \"cuda\", \"cuda:1\" and \"meta\"");
  }
}

// Whether a value is the module torch.
bool is_torch(lua_State* L, int index) {
  if (!lua_istable(L, index)) return false;
  lua_pushliteral(L, "is_tensor");
  lua_rawget(L, index);
  bool is_one = lua_isfunction(L, -1);
  lua_pop(L, 1);
  return is_one;
}

// Errors of LibTorch that do not say what to do, by a part of their text.
constexpr struct {
  std::string_view part, text;
} remedies[] = {
    {"index out of range in self",
     "; an index is negative, or not less than the rows of the first tensor: for token ids, is "
     "this "
     "the tokenizer of the model?"},
    {"is out of bounds.",
     " Classes count from 0, and there are as many as the logits have columns"},
    {"could not infer output dtype", "; x:float() makes numbers with fractions of it"},
    {"have the same dtype", "; x:to \"float32\" converts"},
    {"expected scalar type Long", "; x:long() makes whole numbers, such as classes, of it"},
    {"expected target dtype to be Long", "; x:long() makes whole numbers, such as classes, of it"},
    {"scalar types: Long, Int; but got",
     "; x:long() makes whole numbers, such as token ids, of it"},
    {"not implemented for 'Long'", "; x:float() makes numbers with fractions of it"},
    {"a leaf Variable that requires grad is being used in an in-place operation",
     " Write it in torch.no_grad(function() ... end)"},
    {"does not match the length of the desired ordering of dimensions",
     "; each dimension is named once: x:permute(0, 2, 1)"},
    {"can require gradients", "; x:float() makes such numbers"},
};

std::string remedy_for(const std::string& message) {
  for (const auto& each : remedies)
    if (message.find(each.part) != message.npos) return std::string(each.text);
  return "";
}

// Whether an overload must be given an argument of this kind at a position, from 1.
bool takes(const OverloadSet& op, int position, ArgKind kind) {
  return std::ranges::any_of(op.overloads, [&](const Overload& overload) {
    const auto& parameters = overload.parameters();
    return int(parameters.size()) >= position && parameters[position - 1].kind == kind &&
           !parameters[position - 1].optional;
  });
}

// Names the missing arguments of the overload that lacks the fewest; "" if one lacks none.
std::string missing_arguments(const OverloadSet& op, const Arguments& arguments) {
  std::string fewest;
  int least = -1;
  for (const Overload& overload : op.overloads) {
    std::string names;
    int n = 0, position = 0;
    for (const Parameter& parameter : overload.parameters()) {
      bool is_given = position++ < arguments.n_positional && !parameter.named_only;
      for (int i = 0; i < arguments.n_named; ++i)
        is_given = is_given || parameter.name == arguments.named[i].name;
      if (is_given || parameter.has_default || parameter.is_out) continue;
      names += (n++ == 0 ? "" : "', '") + parameter.name;
    }
    if (!overload.callable() || (least >= 0 && n >= least)) continue;
    least = n;
    fewest = names;
  }
  return least > 0 ? "; '" + fewest + "' " + (least == 1 ? "is" : "are") + " missing" : "";
}

[[noreturn]] void fail_no_overload(lua_State* L, const OverloadSet& op,
                                   const Arguments& arguments) {
  check_names_of_types(L, op, arguments);
  std::string text = (arguments.is_method ? "Tensor:" : "torch.") + op.name +
                     ": no overload takes " + given_arguments(L, arguments);
  std::set<std::string> known;
  for (const Overload& overload : op.overloads)
    for (const Parameter& parameter : overload.parameters()) known.insert(parameter.name);
  std::set<std::string> unknown;
  for (int i = 0; i < arguments.n_named; ++i)
    if (!known.count(arguments.named[i].name)) unknown.insert(arguments.named[i].name);
  for (const std::string& key : unknown) {
    std::string near = nearest(key, known);
    text += "; it has no argument '" + key + "'" +
            (key == "axis" && known.count("dim") ? ": it is called dim"
             : near.empty()                      ? ""
                                                 : ": did you mean '" + near + "'?");
  }
  for (int i = 0; i < arguments.n_named; ++i)
    if (std::strcmp(arguments.named[i].name, "generator") == 0 &&
        lua_type(L, arguments.named[i].index) == LUA_TNUMBER)
      text += "; a seed makes a generator: torch.Generator(42)";
  if (arguments.n_positional > 0 && is_torch(L, 1))
    fail("torch.", op.name, " is called with a dot, not a colon: torch.", op.name, "(...)");
  for (int i = 1; i <= arguments.n_positional; ++i) {
    const std::string which = i == 1 ? "the first argument" : "argument " + std::to_string(i);
    if (!takes(op, i, ArgKind::tensor) || (arguments.is_method && i == 1)) continue;
    if (lua_isnil(L, i)) text += "; " + which + " is nil: is a name misspelt?";
    if (lua_istable(L, i)) text += "; " + which + " is a table: torch.tensor makes a tensor";
  }
  if (takes(op, 1, ArgKind::tensor_list) && arguments.n_positional > 0 &&
      test_tensor(L, 1) != nullptr)
    text += "; the tensors are in a list: torch." + op.name + "({a, b})";
  if (arguments.is_method && (arguments.n_positional == 0 || test_tensor(L, 1) == nullptr))
    text += "; a method is called with a colon: tensor:" + op.name + "(...)";
  if (arguments.n_positional > 0 && is_mixed(L, arguments.n_positional))
    text += "; a list and named arguments are two tables: {0}, {keepdim = true}";
  if (arguments.n_positional > 0 && test_tensor(L, 1) != nullptr)
    text += missing_arguments(op, arguments);
  text += "\ncandidates:";
  for (const Overload& overload : op.overloads)
    if (overload.callable()) text += "\n  " + overload.text();
  throw Error(text);
}

// Several `out` tensors are given as a list: replaces named argument `i` by one for each `out`
// parameter.
void spread_out(lua_State* L, const OverloadSet& op, Arguments& arguments, int i) {
  int list = arguments.named[i].index;
  int n_out = int(lua_objlen(L, list));
  for (const Overload& overload : op.overloads) {
    std::vector<const Parameter*> out;
    for (const Parameter& parameter : overload.parameters())
      if (parameter.is_out) out.push_back(&parameter);
    if (int(out.size()) != n_out || out[0]->kind != ArgKind::tensor) continue;
    if (arguments.n_named + n_out > Arguments::max_named) return;
    arguments.named[i] = arguments.named[--arguments.n_named];
    for (int k = 0; k < n_out; ++k) {
      lua_rawgeti(L, list, k + 1);
      arguments.named[arguments.n_named++] = {out[k]->name.c_str(), lua_gettop(L)};
    }
    return;
  }
}

// Pushes the values of the named arguments in the table at `index`. Returns `requires_grad`, which
// is not in the schemas: PyTorch's factories accept it separately.
std::optional<bool> read_named(lua_State* L, const OverloadSet& op, int index,
                               Arguments& arguments) {
  std::optional<bool> requires_grad;
  int out = -1;
  lua_pushnil(L);
  while (lua_next(L, index) != 0) {
    require(lua_type(L, -2) == LUA_TSTRING && arguments.n_named < Arguments::max_named,
            arguments.is_method ? "Tensor:" : "torch.", op.name,
            ": expected a list or a table of named arguments, got ", described(L, index));
    const char* name = lua_tostring(L, -2);
    if (std::strcmp(name, "requires_grad") == 0 && op.is_factory && lua_isboolean(L, -1)) {
      requires_grad = lua_toboolean(L, -1) != 0;
      lua_pop(L, 1);
      continue;
    }
    if (std::strcmp(name, "out") == 0 && lua_istable(L, -1) && lua_objlen(L, -1) > 1)
      out = arguments.n_named;
    arguments.named[arguments.n_named++] = {name, lua_gettop(L)};
    lua_pushvalue(L, -2);  // the key, for lua_next; the value stays below it
  }
  if (out >= 0) spread_out(L, op, arguments, out);
  return requires_grad;
}

template <bool is_method>
int operator_function(lua_State* L) {
  const auto* op = static_cast<const OverloadSet*>(lua_touserdata(L, lua_upvalueindex(1)));
  return call_operator(L, *op, is_method);
}

}  // namespace

const OverloadSet* find_operator(const std::string& name) {
  OperatorTable& all = operator_table();
  std::lock_guard lock(all.mutex);
  auto known = all.operators.find(name);
  if (known != all.operators.end()) return known->second.get();
  auto found = all.names.find(name);
  if (found == all.names.end()) return nullptr;
  auto op = std::make_unique<OverloadSet>();
  op->name = name;
  std::vector<c10::OperatorName> names = found->second;
  std::sort(names.begin(), names.end(),
            [](const auto& a, const auto& b) { return a.overload_name < b.overload_name; });
  for (const auto& overload : names)
    if (auto handle = c10::Dispatcher::singleton().findSchema(overload))
      op->overloads.emplace_back(*handle);
  op->is_factory = std::any_of(op->overloads.begin(), op->overloads.end(),
                               [](const Overload& overload) { return overload.is_factory(); });
  // Of two overloads that fit equally well, the one with fewer parameters is chosen.
  std::stable_sort(op->overloads.begin(), op->overloads.end(), [](const auto& a, const auto& b) {
    return a.parameters().size() < b.parameters().size();
  });
  return (all.operators[name] = std::move(op)).get();
}

const std::vector<std::string>& operator_names() { return operator_table().sorted; }

bool push_operator(lua_State* L, const std::string& name, bool is_method) {
  const OverloadSet* op = find_operator(name);
  if (op == nullptr) return false;
  lua_pushlightuserdata(L, const_cast<OverloadSet*>(op));
  lua_pushcclosure(L, is_method ? operator_function<true> : operator_function<false>, 1);
  return true;
}

const OverloadSet* test_operator(lua_State* L, int index, bool& is_method) {
  lua_CFunction function = lua_tocfunction(L, index);
  is_method = function == operator_function<true>;
  if (!is_method && function != operator_function<false>) return nullptr;
  lua_getupvalue(L, index, 1);
  const auto* op = static_cast<const OverloadSet*>(lua_touserdata(L, -1));
  lua_pop(L, 1);
  return op;
}

int call_operator(lua_State* L, const OverloadSet& op, bool is_method) {
  int n_args = lua_gettop(L);
  Arguments arguments;
  arguments.n_positional = n_args;
  arguments.is_method = is_method;
  luaL_checkstack(L, 2 * Arguments::max_named + int(max_parameters), op.name.c_str());
  std::optional<bool> requires_grad;
  if (n_args > 0 && is_named_table(L, n_args)) {
    arguments.n_positional = n_args - 1;
    requires_grad = read_named(L, op, n_args, arguments);
  }

  Choice best = choose(L, op, arguments);
  if (best.overload == nullptr && n_args > 0 && is_empty_table(L, n_args)) {
    // An empty table at the end means no named arguments, not an empty list.
    --arguments.n_positional;
    best = choose(L, op, arguments);
  }
  if (best.overload == nullptr) fail_no_overload(L, op, arguments);

  try {
    int n_results = with_memory_retry(L, [&] { return best.overload->call(L, best.binding); });
    if (requires_grad) check_tensor(L, lua_gettop(L)).set_requires_grad(*requires_grad);
    return n_results;
  } catch (const c10::Error& error) {
    std::string text = text_of(error);
    // LibTorch's permute names this layout for every tensor.
    constexpr std::string_view prefix = "permute(sparse_coo): ";
    if (text.starts_with(prefix)) text.erase(0, prefix.size());
    fail(is_method ? "Tensor:" : "torch.", op.name, ": ", text, remedy_for(text),
         "\ngiven: ", given_arguments(L, arguments));
  }
}

}  // namespace redco::lua
