// torch.jit: runs TorchScript modules.
#include "held_setting.h"
#include "state/arguments.h"
#include "state/context.h"
#include "state/object.h"
#include "state/registry.h"
#include "state/tensor.h"
#include "state/values.h"
#include "torch.h"

#include <redco/error.h>
#include <redco/torchscript.h>
#include <redco/tree.h>

#include <ATen/Context.h>
#include <ATen/core/ivalue.h>
#include <caffe2/serialize/read_adapter_interface.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace redco::lua {

namespace {

using c10::IValue;
using torch::jit::Module;

// The position of a tensor in a list that is an attribute.
struct ListPlace {
  c10::List<IValue> list;
  size_t index;
};

struct LuaModule {
  static constexpr const char* lua_name = "ScriptModule";
  Module module;
  std::multimap<std::string, ListPlace>
      in_lists;  // parameters that are also in lists, by dotted name
};

// Returns the module that holds the attribute with this dotted name, and the last part of the name.
std::pair<Module, std::string> find_owner(const Module& root, const std::string& dotted) {
  Module owner = root;
  size_t begin = 0;
  for (size_t dot; (dot = dotted.find('.', begin)) != std::string::npos; begin = dot + 1)
    owner = owner.attr(dotted.substr(begin, dot - begin)).toModule();
  return {owner, dotted.substr(begin)};
}

std::vector<std::pair<std::string, at::Tensor>> tensors_of(const Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (const auto& entry : module.named_parameters()) all.emplace_back(entry.name, entry.value);
  for (const auto& entry : module.named_buffers()) all.emplace_back(entry.name, entry.value);
  return all;
}

bool is_same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.is_alias_of(b) && a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes();
}

// Finds parameters in lists: recurrent layers run on these.
std::multimap<std::string, ListPlace> places_in_lists(const Module& root) {
  std::multimap<std::string, ListPlace> places;
  for (const Module& owner : root.modules()) {
    for (const IValue& value : owner.attributes(/*recurse=*/false)) {
      if (!value.isList()) continue;
      c10::List<IValue> list = value.toList();
      for (size_t i = 0; i < list.size(); ++i)
        for (const auto& [name, tensor] : tensors_of(root))
          if (IValue element = list.get(i);
              element.isTensor() && is_same_memory(element.toTensor(), tensor))
            places.emplace(name, ListPlace{list, i});
    }
  }
  return places;
}

// Replaces tensors of a module while it exists.
class Substitution {
 public:
  // Delegates to another constructor, so that the destructor runs, and restores the tensors, if
  // this one throws.
  Substitution(const LuaModule& module, const Tree& params) : Substitution() {
    require(params.is<Tree::Dict>(),
            "ScriptModule: params: expected a table of tensors by dotted name");
    for (const auto& [name, value] : params.as<Tree::Dict>()) {
      auto [owner, attribute] = find_owner(module.module, name);
      require(owner.hasattr(attribute), "ScriptModule: params: the module has no '", name, "'");
      require(value.is_tensor(), "ScriptModule: params: '", name, "': expected a tensor, got a ",
              value.kind());
      before_.push_back({owner, attribute, owner.attr(attribute).toTensor()});
      owner.setattr(attribute, value.tensor());
      auto [first, last] = module.in_lists.equal_range(name);
      for (; first != last; ++first) {
        auto [list, index] = first->second;
        before_in_lists_.emplace_back(first->second, list.get(index));
        list.set(index, value.tensor());
      }
    }
  }
  ~Substitution() {
    for (auto& [owner, attribute, tensor] : before_) owner.setattr(attribute, tensor);
    for (auto& [place, tensor] : before_in_lists_) place.list.set(place.index, tensor);
  }
  Substitution(const Substitution&) = delete;
  Substitution& operator=(const Substitution&) = delete;

 private:
  Substitution() = default;
  struct Entry {
    Module owner;
    std::string attribute;
    at::Tensor tensor;
  };
  std::vector<Entry> before_;
  std::vector<std::pair<ListPlace, IValue>> before_in_lists_;
};

IValue to_ivalue(const Tree& tree) {
  if (tree.is_tensor()) return tree.tensor();
  if (tree.is<bool>()) return tree.as<bool>();
  if (tree.is<int64_t>()) return tree.as<int64_t>();
  if (tree.is<double>()) return tree.as<double>();
  if (tree.is<std::string>()) return tree.as<std::string>();
  if (tree.is<Tree::List>()) {
    c10::List<at::Tensor> list;
    for (const Tree& entry : tree.as<Tree::List>()) list.push_back(entry.tensor());
    return list;
  }
  if (tree.is<Tree::Dict>()) {
    c10::Dict<std::string, at::Tensor> dict;
    for (const auto& [key, entry] : tree.as<Tree::Dict>()) dict.insert(key, entry.tensor());
    return dict;
  }
  return {};
}

Tree to_tree(const IValue& value) {
  if (value.isTensor()) return value.toTensor();
  if (value.isBool()) return Tree(value.toBool());
  if (value.isInt()) return Tree(value.toInt());
  if (value.isDouble()) return Tree(value.toDouble());
  if (value.isString()) return Tree(value.toStringRef());
  if (value.isNone()) return {};
  if (value.isList() || value.isTuple()) {
    Tree::List list;
    if (value.isTuple()) {
      for (const IValue& entry : value.toTupleRef().elements()) list.push_back(to_tree(entry));
    } else {
      for (const IValue& entry : value.toListRef()) list.push_back(to_tree(entry));
    }
    return list;
  }
  require(value.isGenericDict(), "ScriptModule: a ", value.tagKind(), " has no Lua form");
  Tree::Dict dict;
  for (const auto& entry : value.toGenericDict())
    dict[entry.key().toStringRef()] = to_tree(entry.value());
  return dict;
}

// Converts an argument: an integral Lua number becomes a float if the module expects one.
IValue argument(const Tree& tree, const c10::FunctionSchema& schema, size_t position) {
  if (!tree.is<int64_t>() || position >= schema.arguments().size()) return to_ivalue(tree);
  c10::TypePtr type = schema.arguments()[position].type();
  if (const auto* optional = type->castRaw<c10::OptionalType>()) type = optional->getElementType();
  return type->kind() == c10::TypeKind::FloatType ? IValue(double(tree.as<int64_t>()))
                                                  : to_ivalue(tree);
}

// Advice on buffers that were given with requires_grad: LibTorch cannot differentiate with
// respect to running statistics, and does not name them.
std::string advice_on_buffers(const Module& module, const Tree& params) {
  std::string names;
  for (const auto& buffer : module.named_buffers()) {
    const auto& given = params.as<Tree::Dict>();
    auto found = given.find(buffer.name);
    if (found == given.end() || !found->second.tensor().requires_grad()) continue;
    names += (names.empty() ? "" : ", ") + buffer.name;
  }
  if (names.empty()) return "";
  return "\nThese buffers of the module require gradients: " + names +
         ". If they are running statistics, give them without (t:detach()); a Trainer leaves them "
         "out with redco.optim.freeze";
}

// module(params, ...): a tuple becomes several results. LibTorch would optimize a module after its
// first calls: then random numbers and what is saved for backward depend on the number of calls,
// which may differ between processes. The setting is this thread's.
int forward(lua_State* L) {
  auto self = check_object<LuaModule>(L, 1, "ScriptModule");
  Tree params = lua_isnil(L, 2) ? Tree(Tree::Dict{}) : check_tree(L, 2);
  Substitution substitution(*self, params);
  const c10::FunctionSchema& schema =
      self->module.get_method("forward").function().getSchema();  // argument 0 is the module
  std::vector<IValue> inputs;
  for (int i = 3; i <= lua_gettop(L); ++i)
    inputs.push_back(argument(check_tree(L, i), schema, size_t(i) - 2));
  torch::jit::GraphOptimizerEnabledGuard every_call_alike(false);
  IValue result;
  try {
    result = self->module.forward(std::move(inputs));
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {
    fail("ScriptModule: ", text_of(error), advice_on_buffers(self->module, params));
  }
  if (!result.isTuple()) {
    push_tree(L, to_tree(result));
    return 1;
  }
  const auto& elements = result.toTupleRef().elements();
  for (const IValue& entry : elements) push_tree(L, to_tree(entry));
  return int(elements.size());
}

int train(lua_State* L) {
  auto self = check_object<LuaModule>(L, 1, "ScriptModule:train");
  self->module.train(lua_isnoneornil(L, 2) || lua_toboolean(L, 2));
  lua_settop(L, 1);
  return 1;
}

int eval(lua_State* L) {
  check_object<LuaModule>(L, 1, "ScriptModule:eval")->module.eval();
  lua_settop(L, 1);
  return 1;
}

int field(lua_State* L) {
  auto self = check_object<LuaModule>(L, 1, "ScriptModule");
  std::string name = luaL_checkstring(L, 2);
  require(name == "params", "a ScriptModule has no '", name, "'; its field is params");
  Tree::Dict params;
  for (auto& [path, tensor] : tensors_of(self->module)) params[path] = tensor.detach();
  push_tree(L, params);
  return 1;
}

// Passes LibTorch the bytes that were checked: the file may change in between.
class CheckedFile : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit CheckedFile(const std::string& path) : bytes_(read_torchscript(path)) {}
  size_t size() const override { return bytes_.size(); }
  size_t read(uint64_t from, void* to, size_t n, const char*) const override {
    if (from >= bytes_.size()) return 0;
    n = std::min(n, bytes_.size() - from);
    std::memcpy(to, bytes_.data() + from, n);
    return n;
  }

 private:
  std::string bytes_;
};

// Makes LibTorch check the indices of sparse tensors in the file.
struct ChecksSparse {
  static auto get() { return at::globalContext().checkSparseTensorInvariants(); }
  static void set(decltype(at::globalContext().checkSparseTensorInvariants()) on) {
    at::globalContext().setCheckSparseTensorInvariants(on);
  }
};

int load_module(lua_State* L) {
  std::string path = luaL_checkstring(L, 1);
  std::optional<c10::Device> device;
  if (!lua_isnoneornil(L, 2)) {
    NamedArguments args(L, 2, "torch.jit.load");
    auto name = args.optional<std::string>("map_location");
    args.finish();
    if (name) device = parse_device(*name);
    require(!name || device, "torch.jit.load: map_location = \"", name.value_or(""),
            "\" is not a device such as \"cpu\" or \"cuda:0\"");
  }
  HeldSetting<ChecksSparse> check(true);
  try {
    Module module = torch::jit::load(std::make_shared<CheckedFile>(path), device);
    push_object(L, std::make_shared<LuaModule>(LuaModule{module, places_in_lists(module)}));
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {
    fail("torch.jit.load: cannot read ", path, " as TorchScript: ", text_of(error));
  }
  return 1;
}

}  // namespace

void add_jit(lua_State* L) {
  make_object_type<LuaModule>(
      L,
      "ScriptModule {params}\nA TorchScript module, read by `torch.jit.load`.\n"
      "  params: its parameters and buffers by dotted name",
      {{"train", train,
        "train(self, mode = true) -> self\nSwitches dropout and batch statistics on or off."},
       {"eval", eval, "eval(self) -> self\nSwitches to evaluation, as train(false)."}},
      field);
  luaL_getmetatable(L, LuaModule::lua_name);
  register_functions(L, "ScriptModule:",
                     {{"__call", forward,
                       "__call(self, params, ...) -> what forward returns\n"
                       "Calls forward(...) with `params` in place of the module's parameters, so "
                       "that gradients flow to them. nil: the module's parameters."}});
  lua_pop(L, 1);
  lua_newtable(L);
  register_value(L, "torch.jit", "torch.jit\nModules that PyTorch's torch.jit.save wrote.");
  register_functions(
      L, "torch.jit.",
      {{"load", load_module,
        "load(path, {map_location: string = nil}) -> ScriptModule\n"
        "A TorchScript module that torch.jit.save wrote. `module.params` are its parameters and "
        "buffers by dotted name; `module(params, ...)` calls forward(...) with `params` in "
        "place of the module's parameters (nil: these), so gradients flow to `params`. Tensors are "
        "loaded to the device they were saved from, or to `map_location`, such as \"cpu\". A "
        "damaged file is refused. The code "
        "in the file runs when it is loaded and called: load only files that you trust."}});
  lua_setfield(L, -2, "jit");
}

}  // namespace redco::lua
