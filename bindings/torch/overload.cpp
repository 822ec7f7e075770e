// Binds Lua arguments to an operator's schema and calls it.

#include "overload.h"

#include "recompute.h"
#include "state/tensor.h"
#include "state/values.h"

#include <redco/error.h>
#include <redco/plan.h>
#include <redco/random.h>
#include <redco/sharding.h>

#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>

#include <algorithm>
#include <exception>
#include <optional>

namespace redco::lua {

namespace {

using c10::IValue;
using c10::TypeKind;

ArgKind kind_of(const c10::Type& type) {
  switch (type.kind()) {
    case TypeKind::TensorType:
      return ArgKind::tensor;
    case TypeKind::NumberType:
      return ArgKind::scalar;
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return ArgKind::integer;
    case TypeKind::FloatType:
      return ArgKind::number;
    case TypeKind::BoolType:
      return ArgKind::boolean;
    case TypeKind::StringType:
      return ArgKind::string;
    case TypeKind::ScalarTypeType:
      return ArgKind::dtype;
    case TypeKind::LayoutType:
      return ArgKind::layout;
    case TypeKind::MemoryFormatType:
      return ArgKind::memory_format;
    case TypeKind::DeviceObjType:
      return ArgKind::device;
    case TypeKind::GeneratorType:
      return ArgKind::generator;
    case TypeKind::ListType: {
      const c10::Type& element = *type.castRaw<c10::ListType>()->getElementType();
      if (const auto* optional = element.castRaw<c10::OptionalType>())
        return optional->getElementType()->kind() == TypeKind::TensorType
                   ? ArgKind::optional_tensor_list
                   : ArgKind::unsupported;
      switch (kind_of(element)) {
        case ArgKind::tensor:
          return ArgKind::tensor_list;
        case ArgKind::scalar:
          return ArgKind::scalar_list;
        case ArgKind::integer:
          return ArgKind::integer_list;
        case ArgKind::number:
          return ArgKind::number_list;
        case ArgKind::boolean:
          return ArgKind::boolean_list;
        default:
          return ArgKind::unsupported;
      }
    }
    default:
      return ArgKind::unsupported;
  }
}

struct NamedLayout {
  const char* name;
  c10::Layout layout;
};
constexpr NamedLayout layouts[] = {{"strided", c10::kStrided}, {"sparse_coo", c10::kSparse}};

struct NamedMemoryFormat {
  const char* name;
  c10::MemoryFormat format;
};
constexpr NamedMemoryFormat memory_formats[] = {
    {"contiguous_format", c10::MemoryFormat::Contiguous},
    {"preserve_format", c10::MemoryFormat::Preserve},
    {"channels_last", c10::MemoryFormat::ChannelsLast},
    {"channels_last_3d", c10::MemoryFormat::ChannelsLast3d},
};

template <class Table>
auto find_named(const Table& table, lua_State* L, int index) {
  const char* name = lua_tostring(L, index);
  auto* found = std::find_if(std::begin(table), std::end(table), [&](const auto& entry) {
    return std::string_view(entry.name) == name;
  });
  return found == std::end(table) ? nullptr : found;
}

// Costs of conversions; 0 if a value has exactly the parameter's type.
constexpr int no_match = -1;
constexpr int conversion = 1;

int cost_of(lua_State* L, int index, ArgKind kind);

// The cost of a list is that of its most expensive element.
int cost_of_list(lua_State* L, int index, ArgKind element) {
  if (lua_type(L, index) != LUA_TTABLE) return no_match;
  int length = int(lua_objlen(L, index));
  if (length == 0) {
    lua_pushnil(L);
    if (lua_next(L, index) != 0) {  // named entries: not a list
      lua_pop(L, 2);
      return no_match;
    }
    return 0;
  }
  int cost = 0;
  for (int i = 1; i <= length && cost != no_match; ++i) {
    lua_rawgeti(L, index, i);
    int one = cost_of(L, lua_gettop(L), element);
    cost = one == no_match ? no_match : std::max(cost, one);
    lua_pop(L, 1);
  }
  // Other entries than those of the list would be lost.
  int n_entries = 0;
  for (lua_pushnil(L); lua_next(L, index) != 0; lua_pop(L, 1)) ++n_entries;
  return n_entries == length ? cost : no_match;
}

bool is_false(lua_State* L, int index) {
  return lua_type(L, index) == LUA_TBOOLEAN && !lua_toboolean(L, index);
}

int cost_of(lua_State* L, int index, ArgKind kind) {
  int type = lua_type(L, index);
  switch (kind) {
    case ArgKind::tensor:
      return test_tensor(L, index) ? 0 : no_match;
    case ArgKind::scalar:
      if (type == LUA_TNUMBER) return 0;
      return test_scalar(L, index) ? conversion : no_match;
    case ArgKind::integer:
      return test_integer(L, index) ? 0 : no_match;
    case ArgKind::number:
      if (type == LUA_TNUMBER) return test_integer(L, index) ? conversion : 0;
      return test_integer(L, index) ? conversion : no_match;
    case ArgKind::boolean:
      return type == LUA_TBOOLEAN ? 0 : no_match;
    case ArgKind::string:
      return type == LUA_TSTRING ? 0 : no_match;
    case ArgKind::dtype:
      return type == LUA_TSTRING && parse_dtype(lua_tostring(L, index)) ? 0 : no_match;
    case ArgKind::device:
      return type == LUA_TSTRING && parse_device(lua_tostring(L, index)) ? 0 : no_match;
    case ArgKind::layout:
      return type == LUA_TSTRING && find_named(layouts, L, index) ? 0 : no_match;
    case ArgKind::memory_format:
      return type == LUA_TSTRING && find_named(memory_formats, L, index) ? 0 : no_match;
    case ArgKind::generator:
      return test_generator(L, index) ? 0 : no_match;
    case ArgKind::integer_list:
      if (test_integer(L, index)) return 2 * conversion;  // a number for a list of one
      return cost_of_list(L, index, ArgKind::integer);
    case ArgKind::number_list:
      return cost_of_list(L, index, ArgKind::number);
    case ArgKind::scalar_list:
      return cost_of_list(L, index, ArgKind::scalar);
    case ArgKind::boolean_list:
      return cost_of_list(L, index, ArgKind::boolean);
    case ArgKind::tensor_list:
      return cost_of_list(L, index, ArgKind::tensor);
    case ArgKind::optional_tensor_list: {
      if (type != LUA_TTABLE) return no_match;
      int length = int(lua_objlen(L, index));
      bool fits = true;
      for (int i = 1; i <= length && fits; ++i) {
        lua_rawgeti(L, index, i);
        fits = lua_isnil(L, -1) || is_false(L, -1) || test_tensor(L, -1);
        lua_pop(L, 1);
      }
      return fits ? 0 : no_match;
    }
    case ArgKind::unsupported:
      return no_match;
  }
  return no_match;
}

double read_number(lua_State* L, int index) {
  if (auto integer = test_integer(L, index)) return double(*integer);
  return lua_tonumber(L, index);
}

// Reads the elements of the list at `index`, or of `n_gathered` stack slots from there. A single
// value is repeated `size` times.
template <class T, class Read>
IValue read_list(lua_State* L, int index, int n_gathered, int size, Read read) {
  c10::List<T> list;
  if (n_gathered > 0) {
    for (int i = 0; i < n_gathered; ++i) list.push_back(read(index + i));
  } else if (lua_type(L, index) != LUA_TTABLE) {
    for (int i = 0; i < size; ++i) list.push_back(read(index));
  } else {
    int length = int(lua_objlen(L, index));
    list.reserve(size_t(length));
    if (length == 1 && size > 1) {
      lua_rawgeti(L, index, 1);
      for (int i = 0; i < size; ++i) list.push_back(read(lua_gettop(L)));
      lua_pop(L, 1);
      return list;
    }
    for (int i = 1; i <= length; ++i) {
      lua_rawgeti(L, index, i);
      list.push_back(read(lua_gettop(L)));
      lua_pop(L, 1);
    }
  }
  return list;
}

// Checks the length of a list: kernels with `int[2] stride` read two elements without a check. A
// list of one element, or a number, is repeated. An empty list is allowed if it is the default.
void check_length(lua_State* L, int index, const Parameter& parameter, int n_gathered) {
  if (parameter.list_size < 2 || lua_type(L, index) != LUA_TTABLE) return;
  int length = n_gathered > 0 ? n_gathered : int(lua_objlen(L, index));
  bool may_be_empty =
      parameter.default_value.isIntList() && parameter.default_value.toIntVector().empty();
  require(length == parameter.list_size || length == 1 || (length == 0 && may_be_empty),
          parameter.name, ": expected a list of ", parameter.list_size, " integers, got ", length);
}

IValue read(lua_State* L, int index, const Parameter& parameter, int n_gathered,
            bool numbers_are_floats) {
  switch (parameter.kind) {
    case ArgKind::tensor:
      return *test_tensor(L, index);
    case ArgKind::scalar:
      if (numbers_are_floats && lua_type(L, index) == LUA_TNUMBER) return lua_tonumber(L, index);
      return *test_scalar(L, index);
    case ArgKind::integer:
      return *test_integer(L, index);
    case ArgKind::number:
      return read_number(L, index);
    case ArgKind::boolean:
      return lua_toboolean(L, index) != 0;
    case ArgKind::string:
      return std::string(lua_tostring(L, index));
    case ArgKind::dtype:
      return *parse_dtype(lua_tostring(L, index));
    case ArgKind::device:
      return *parse_device(lua_tostring(L, index));
    case ArgKind::layout:
      return find_named(layouts, L, index)->layout;
    case ArgKind::memory_format:
      return find_named(memory_formats, L, index)->format;
    case ArgKind::generator:
      about_to_draw(*test_generator(L, index));
      return *test_generator(L, index);
    case ArgKind::integer_list:
      check_length(L, index, parameter, n_gathered);
      return read_list<int64_t>(L, index, n_gathered, parameter.list_size,
                                [&](int at) { return *test_integer(L, at); });
    case ArgKind::number_list:
      return read_list<double>(L, index, 0, 1, [&](int at) { return read_number(L, at); });
    case ArgKind::boolean_list:
      return read_list<bool>(L, index, 0, 1, [&](int at) { return lua_toboolean(L, at) != 0; });
    case ArgKind::tensor_list:
      return read_list<at::Tensor>(L, index, n_gathered, 1,
                                   [&](int at) { return *test_tensor(L, at); });
    case ArgKind::scalar_list:
      return read_list<c10::Scalar>(L, index, 0, 1, [&](int at) { return *test_scalar(L, at); });
    case ArgKind::optional_tensor_list:
      return read_list<std::optional<at::Tensor>>(
          L, index, 0, 1, [&](int at) -> std::optional<at::Tensor> {
            at::Tensor* tensor = test_tensor(L, at);
            return tensor ? std::optional(*tensor) : std::nullopt;
          });
    case ArgKind::unsupported:
      break;
  }
  return {};
}

void push_value(lua_State* L, IValue value, bool fresh) {
  if (value.isTensor()) {
    at::Tensor tensor = std::move(value).toTensor();
    const at::Tensor& memory = held_memory_of(tensor);
    int64_t bytes =
        fresh && memory.defined() && memory.has_storage() ? int64_t(memory.storage().nbytes()) : 0;
    push_tensor(L, std::move(tensor), bytes);
  } else if (value.isNone()) {
    lua_pushnil(L);
  } else if (value.isInt()) {
    push_integer(L, value.toInt());
  } else if (value.isDouble()) {
    lua_pushnumber(L, value.toDouble());
  } else if (value.isBool()) {
    lua_pushboolean(L, value.toBool());
  } else if (value.isScalar()) {
    push_scalar(L, value.toScalar());
  } else if (value.isString()) {
    const std::string& text = value.toStringRef();
    lua_pushlstring(L, text.data(), text.size());
  } else if (value.isDevice()) {
    lua_pushstring(L, value.toDevice().str().c_str());
  } else if (value.isList()) {
    auto list = value.toListRef();
    lua_createtable(L, int(list.size()), 0);
    for (size_t i = 0; i < list.size(); ++i) {
      push_value(L, list[i], fresh);
      lua_rawseti(L, -2, int(i) + 1);
    }
  } else {
    fail("the result of an operator is a ", value.tagKind(), ", which has no Lua form");
  }
}

// The argument stack of a call. The next call reuses its memory; a nested call has a separate one.
struct KeptStack {
  KeptStack() : stack(std::move(spare)) {}
  ~KeptStack() {
    stack.clear();
    spare = std::move(stack);
  }
  KeptStack(const KeptStack&) = delete;
  KeptStack& operator=(const KeptStack&) = delete;

  torch::jit::Stack stack;

 private:
  static thread_local torch::jit::Stack spare;
};

thread_local torch::jit::Stack KeptStack::spare;

// The tensors that a call writes to. If the call resizes one and then runs out of memory, the
// tensor would exceed its storage, so it is emptied.
class WrittenTensors {
 public:
  WrittenTensors(const std::vector<Parameter>& parameters, const torch::jit::Stack& stack) {
    for (size_t i = 0; i < parameters.size(); ++i)
      if ((parameters[i].is_out || parameters[i].is_written) && stack[i].isTensor())
        tensors_.push_back(stack[i].toTensor());
  }
  ~WrittenTensors() {
    if (std::uncaught_exceptions() == n_exceptions_) return;
    for (const at::Tensor& tensor : tensors_) {
      if (!tensor.defined() || !tensor.device().is_cpu() || !tensor.has_storage()) continue;
      if (tensor.key_set().has(c10::DispatchKey::Fake)) continue;
      auto* impl = tensor.unsafeGetTensorImpl();
      double bytes = double(tensor.numel()) * double(tensor.element_size());
      if (tensor.is_contiguous() && bytes > double(tensor.storage().nbytes()))
        impl->set_sizes_contiguous({0});
    }
  }
  WrittenTensors(const WrittenTensors&) = delete;
  WrittenTensors& operator=(const WrittenTensors&) = delete;

 private:
  int n_exceptions_ = std::uncaught_exceptions();
  std::vector<at::Tensor> tensors_;
};

// Factories for which an integral Lua number is an integer, as PyTorch would infer.
bool counts_in_integers(const std::string& name) { return name == "aten::arange"; }

// Whether an overload takes dimensions by name. In its schema a name looks like any string, and Lua
// has no tensors with named dimensions.
bool takes_dimension_names(const c10::FunctionSchema& schema) {
  const std::string& overload = schema.overload_name();
  return overload.find("Dimname") != std::string::npos || overload.find("names") == 0;
}

std::string signature_of(const c10::FunctionSchema& schema) {
  std::string text = c10::toString(schema);
  size_t name_end = text.find("::");
  return name_end == std::string::npos ? text : text.substr(name_end + 2);
}

}  // namespace

namespace {

// Returns whether a call may resize this argument.
bool is_resized(const c10::FunctionSchema& schema, const c10::Argument& argument) {
  return schema.name().find("resize") != std::string::npos && argument.alias_info() != nullptr &&
         argument.alias_info()->isWrite();
}

}  // namespace

Overload::Overload(const c10::OperatorHandle& handle)
    : handle_(handle),
      check_(find_check(handle.schema().name())),
      text_(signature_of(handle.schema())) {
  const c10::FunctionSchema& schema = handle.schema();
  bool takes_tensors = false;
  bool takes_dtype = false;
  int self = -1;
  for (const c10::Argument& argument : schema.arguments()) {
    c10::TypePtr type = argument.real_type();
    bool optional = false;
    if (const auto* inner = type->castRaw<c10::OptionalType>()) {
      optional = true;
      type = inner->getElementType();
    }
    ArgKind kind = kind_of(*type);
    int index = int(parameters_.size());
    takes_tensors |= kind == ArgKind::tensor || kind == ArgKind::tensor_list;
    takes_dtype |= kind == ArgKind::dtype;
    if (argument.name() == "self") self = index;
    const auto& default_value = argument.default_value();
    bool has_default = default_value.has_value();
    // `out` parameters have no default: an overload with `out` is chosen only if it is given.
    if (kind == ArgKind::unsupported && !has_default && !optional) callable_ = false;
    if (!argument.kwarg_only()) positional_.push_back(index);
    parameters_.push_back({argument.name(), kind, optional, argument.kwarg_only(),
                           argument.is_out(), is_resized(schema, argument), has_default,
                           argument.N().value_or(1), has_default ? *default_value : IValue()});
    is_factory_ |= argument.name() == "pin_memory";
  }
  if (parameters_.size() > max_parameters || takes_dimension_names(schema)) callable_ = false;
  if (self >= 0 && !parameters_[size_t(self)].named_only) {
    positional_method_.push_back(self);
    for (int index : positional_)
      if (index != self) positional_method_.push_back(index);
  }
  numbers_are_floats_ = takes_dtype && !takes_tensors && !counts_in_integers(schema.name());

  for (const c10::Argument& result : schema.returns()) {
    const c10::AliasInfo* alias = result.alias_info();
    int argument = -1;
    if (alias && alias->isWrite()) {
      for (size_t i = 0; i < schema.arguments().size() && argument < 0; ++i) {
        const c10::AliasInfo* other = schema.arguments()[i].alias_info();
        if (other && other->beforeSets() == alias->beforeSets()) argument = int(i);
      }
    }
    bool is_dtype = result.real_type()->kind() == TypeKind::ScalarTypeType;
    results_.push_back(argument >= 0 ? Result::argument
                       : alias       ? Result::view
                       : is_dtype    ? Result::dtype
                                     : Result::fresh);
    result_arguments_.push_back(argument);
  }
}

Binding Overload::bind(lua_State* L, const Arguments& arguments, bool gather) const {
  Binding binding;
  if (!callable_) return binding;
  const std::vector<int>& order = arguments.is_method ? positional_method_ : positional_;
  int n_positional = int(order.size());
  int given = arguments.n_positional;
  if (given > n_positional && !gather) return binding;
  std::fill_n(binding.slots.begin(), parameters_.size(), Binding::use_default);

  // Named arguments first: they decide between most overloads.
  int cost = 0;
  for (int i = 0; i < arguments.n_named; ++i) {
    const NamedArgument& argument = arguments.named[size_t(i)];
    auto found = std::find_if(parameters_.begin(), parameters_.end(),
                              [&](const Parameter& known) { return known.name == argument.name; });
    if (found == parameters_.end()) return binding;
    int one = cost_of(L, argument.index, found->kind);
    if (one == no_match) return binding;
    binding.slots[size_t(found - parameters_.begin())] = argument.index;
    cost += one;
  }

  for (int i = 0; i < given; ++i) {
    if (i >= n_positional) return binding;
    auto index = size_t(order[size_t(i)]);
    const Parameter& parameter = parameters_[index];
    if (binding.slots[index] != Binding::use_default) return binding;  // given twice
    bool is_list =
        parameter.kind == ArgKind::integer_list || parameter.kind == ArgKind::tensor_list;
    if (gather && is_list && i + 1 == n_positional && i + 1 < given) {
      ArgKind element =
          parameter.kind == ArgKind::integer_list ? ArgKind::integer : ArgKind::tensor;
      for (int rest = i; rest < given; ++rest)
        if (cost_of(L, rest + 1, element) == no_match) return binding;
      binding.slots[index] = i + 1;
      binding.gathering = int(index);
      binding.n_gathered = given - i;
      break;
    }
    if (lua_isnil(L, i + 1)) {
      if (!parameter.optional && !parameter.has_default) return binding;
      if (parameter.optional) binding.slots[index] = i + 1;
      continue;
    }
    int one = cost_of(L, i + 1, parameter.kind);
    if (one == no_match) return binding;
    binding.slots[index] = i + 1;
    cost += one;
  }

  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    if (binding.slots[i] == Binding::use_default && !parameter.has_default &&
        !(parameter.optional && parameter.named_only))
      return binding;
  }
  binding.cost = cost;
  return binding;
}

int Overload::call(lua_State* L, const Binding& binding) const {
  KeptStack kept;
  torch::jit::Stack& stack = kept.stack;
  at::Generator rng;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    int slot = binding.slots[i];
    if (slot == Binding::use_default) {
      stack.push_back(parameter.default_value);
    } else if (lua_isnil(L, slot)) {
      stack.emplace_back();
    } else {
      int n_gathered = int(i) == binding.gathering ? binding.n_gathered : 0;
      stack.push_back(read(L, slot, parameter, n_gathered, numbers_are_floats_));
      if (parameter.kind == ArgKind::generator) rng = *test_generator(L, slot);
    }
  }
  if (check_ != nullptr) check_(handle_.schema(), stack);
  WrittenTensors written(parameters_, stack);
  std::optional<PlanMode::ScriptCall> planned;
  if (PlanMode::is_on()) planned.emplace();
  const c10::OperatorHandle& handle = planned_form(handle_);
  if (rng.defined()) {
    WithRng boxed_calls_need_it(rng);
    handle.callBoxed(stack);
  } else {
    handle.callBoxed(stack);
  }
  int n_results = int(results_.size());
  luaL_checkstack(L, n_results + 2, "the results of an operator");
  for (int i = 0; i < n_results; ++i) {
    auto at = size_t(i);
    int argument = result_arguments_[at];
    if (results_[at] == Result::argument && binding.slots[size_t(argument)] > 0)
      lua_pushvalue(L, binding.slots[size_t(argument)]);
    else if (results_[at] == Result::dtype)
      lua_pushstring(L, dtype_name(stack[at].toScalarType()));
    else
      push_value(L, std::move(stack[at]), results_[at] == Result::fresh);
  }
  return n_results;
}

}  // namespace redco::lua
