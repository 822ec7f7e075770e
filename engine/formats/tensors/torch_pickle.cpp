// Reads pickles of torch.save that have tensors and plain values.

#include "torch_pickle.h"

#include "../../io/strict_json.h"

#include <redco/error.h>

#include <algorithm>
#include <iterator>
#include <limits>

namespace redco::io {

namespace {

using Kind = PickleKind;
using Value = PickleValue;
using Values = PickleValues;

struct Dtype {
  const char* storage;  ///< the class in the module torch; "" if the dtype has none
  const char* name;
  at::ScalarType dtype;
};
constexpr Dtype dtypes[] = {
    {"DoubleStorage", "float64", at::kDouble},
    {"FloatStorage", "float32", at::kFloat},
    {"HalfStorage", "float16", at::kHalf},
    {"BFloat16Storage", "bfloat16", at::kBFloat16},
    {"LongStorage", "int64", at::kLong},
    {"IntStorage", "int32", at::kInt},
    {"ShortStorage", "int16", at::kShort},
    {"CharStorage", "int8", at::kChar},
    {"ByteStorage", "uint8", at::kByte},
    {"BoolStorage", "bool", at::kBool},
    {"", "uint16", at::kUInt16},
    {"", "uint32", at::kUInt32},
    {"", "uint64", at::kUInt64},
    {"", "float8_e4m3fn", at::kFloat8_e4m3fn},
    {"", "float8_e4m3fnuz", at::kFloat8_e4m3fnuz},
    {"", "float8_e5m2", at::kFloat8_e5m2},
    {"", "float8_e5m2fnuz", at::kFloat8_e5m2fnuz},
    {"", "float8_e8m0fnu", at::kFloat8_e8m0fnu},
};

// Classes that occur as arguments and are never called.
bool is_tensor_class(std::string_view text) {
  return text == "torch\nTensor" || text == "torch.nn.parameter\nParameter";
}

}  // namespace

int64_t TorchStorage::bytes() const { return size * int64_t(c10::elementSize(dtype)); }

const std::map<std::string_view, TorchUnpickler::Function>& TorchUnpickler::functions() {
  static const std::map<std::string_view, Function> all = {
      {"collections\nOrderedDict", &TorchUnpickler::ordered_dict},
      {"torch\nSize", &TorchUnpickler::size},
      {"torch._utils\n_rebuild_tensor", &TorchUnpickler::tensor},
      {"torch._utils\n_rebuild_tensor_v2", &TorchUnpickler::tensor_v2},
      {"torch._utils\n_rebuild_tensor_v3", &TorchUnpickler::tensor_v3},
      {"torch._utils\n_rebuild_parameter", &TorchUnpickler::parameter},
      {"torch._utils\n_rebuild_parameter_with_state", &TorchUnpickler::parameter_with_state},
      {"torch._tensor\n_rebuild_from_type_v2", &TorchUnpickler::from_type},
  };
  return all;
}

Value TorchUnpickler::global(std::string_view text) {
  if (functions().count(text) != 0 || is_tensor_class(text))
    return {.kind = Kind::function, .text = text};
  if (text == "torch.storage\nUntypedStorage")
    return {.kind = Kind::dtype, .dtype = at::kByte, .integer = true};
  constexpr std::string_view torch = "torch\n";
  if (text.starts_with(torch)) {
    std::string_view name = text.substr(torch.size());
    for (const Dtype& each : dtypes) {
      if (!name.empty() && name == each.storage) return {.kind = Kind::dtype, .dtype = each.dtype};
      if (name == each.name) return {.kind = Kind::object, .dtype = each.dtype, .text = each.name};
    }
  }
  fail(where_, "it needs ", in_quotes(pickled_name(text)),
       " of Python, which was not run: only dictionaries and lists of tensors, numbers and texts "
       "are read, as torch.save(model.state_dict(), path) writes them");
}

void TorchUnpickler::other(uint8_t code) {
  switch (code) {
    case 'a': {
      Values values = pop_values(1);
      return fill(top(Kind::list), std::move(values));
    }
    case 'U':  // of Python 2
      return push({.kind = Kind::text, .text = take(number<uint8_t>())});
    default:
      PickleMachine::other(code);
  }
}

Value TorchUnpickler::reduce(const Value& function, const Value& given) {
  auto found = functions().find(function.text);
  check(found != functions().end(), "it calls a class of tensors");
  return (this->*found->second)(given);
}

// Ignores the attributes of a dictionary, such as the versions of layers.
Value TorchUnpickler::build(const Value& object, const Value& state) {
  check(object.kind == Kind::dict && state.kind == Kind::dict,
        "it gives attributes to what is no dictionary");
  return object;
}

Value TorchUnpickler::ordered_dict(const Value& given) {
  check(given.kind == Kind::tuple && given.items().empty(), "a dictionary is made of arguments");
  return {.kind = Kind::dict, .contents = std::make_shared<PickleContents>()};
}

Value TorchUnpickler::size(const Value& given) { return arguments(given, {Kind::tuple})[0]; }

// (storage, offset, sizes, strides)
Value TorchUnpickler::tensor(const Value& given) {
  const Values& args = arguments(given, {Kind::storage, Kind::integer, Kind::tuple, Kind::tuple});
  const TorchStorage& stored = storages_[size_t(args[0].integer)];
  check(!stored.is_untyped, "a tensor has no dtype");
  return add_tensor(args, stored.dtype);
}

// (storage, offset, sizes, strides, requires_grad, hooks, metadata)
Value TorchUnpickler::tensor_v2(const Value& given) {
  const Values& args = arguments(
      given, {Kind::storage, Kind::integer, Kind::tuple, Kind::tuple, Kind::boolean, Kind::dict});
  bool is_plain = args.size() == 6 ||
                  (args.size() == 7 && args[6].kind == Kind::dict && args[6].items().empty());
  check(is_plain, "a tensor has metadata, as conjugates and negatives have");
  return tensor(given);
}

// (storage, offset, sizes, strides, requires_grad, hooks, dtype, metadata)
Value TorchUnpickler::tensor_v3(const Value& given) {
  const Values& args = arguments(given, {Kind::storage, Kind::integer, Kind::tuple, Kind::tuple,
                                         Kind::boolean, Kind::dict, Kind::object});
  check(args.size() == 7 || (args.size() == 8 && args[7].kind == Kind::none),
        "a tensor has metadata");
  return add_tensor(args, args[6].dtype);
}

// (tensor, requires_grad, hooks)
Value TorchUnpickler::parameter(const Value& given) {
  return arguments(given, {Kind::tensor, Kind::boolean, Kind::dict})[0];
}

// (tensor, requires_grad, hooks, attributes)
Value TorchUnpickler::parameter_with_state(const Value& given) { return parameter(given); }

// (function, class, arguments, attributes)
Value TorchUnpickler::from_type(const Value& given) {
  const Values& args = arguments(given, {Kind::function, Kind::function, Kind::tuple});
  check(is_tensor_class(args[1].text), "a tensor is of an unknown class");
  return reduce(args[0], args[2]);
}

Value TorchUnpickler::add_tensor(const Values& args, at::ScalarType dtype) {
  const TorchStorage& stored = storages_[size_t(args[0].integer)];
  TorchTensor tensor{size_t(args[0].integer), dtype, args[1].integer, integers(args[2]),
                     integers(args[3])};
  int64_t n_stored = stored.bytes() / int64_t(c10::elementSize(dtype));
  // A view without elements may begin behind its storage.
  if (std::ranges::count(tensor.sizes, 0) > 0) tensor.offset = std::min(tensor.offset, n_stored);
  check_inside(n_stored, tensor.offset, tensor.sizes, tensor.strides);
  tensors_.push_back(std::move(tensor));
  return {.kind = Kind::tensor, .integer = int64_t(tensors_.size()) - 1};
}

// ("storage", class, key, device, elements); files before PyTorch 1.6 have a view at the end
Value TorchUnpickler::storage(const Value& id) {
  const Values& args =
      arguments(id, {Kind::text, Kind::dtype, Kind::text, Kind::text, Kind::integer});
  check(args[0].text == "storage", "it refers to something that is not a storage");
  check(args.size() == 5 || (args.size() == 6 && args[5].kind == Kind::none),
        "it refers to a part of a storage");
  std::string_view key = args[2].text;
  storage_bytes(key, args[4].integer, args[1].dtype, std::numeric_limits<int64_t>::max());
  TorchStorage stored{std::string(key), args[1].dtype, args[1].integer != 0, args[4].integer};
  auto [found, is_new] = index_of_.emplace(key, storages_.size());
  if (is_new) storages_.push_back(stored);
  const TorchStorage& first = storages_[found->second];
  check(first.dtype == stored.dtype && first.is_untyped == stored.is_untyped &&
            first.size == stored.size,
        "a storage has two sizes or types");
  return {.kind = Kind::storage, .integer = int64_t(found->second)};
}

}  // namespace redco::io
