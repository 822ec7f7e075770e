// Checks the pickles of TorchScript archives.

#include "torchscript_pickle.h"

#include "../../io/strict_json.h"
#include "pickle_machine.h"

#include <redco/error.h>

#include <optional>
#include <utility>
#include <vector>

namespace redco::io {

namespace {

using Kind = PickleKind;
using Value = PickleValue;
using Values = PickleValues;

std::optional<at::ScalarType> dtype_of(std::string_view storage) {
#define REDCO_CASE(_, name) \
  if (storage == #name "Storage") return at::ScalarType::name;
  AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_AND_QINTS(REDCO_CASE)
#undef REDCO_CASE
  return std::nullopt;
}

const std::vector<std::pair<std::string, Kind>>& lists_of_a_kind() {
  static const std::vector<std::pair<std::string, Kind>> all = {
      {"torch.jit._pickle.build_intlist", Kind::integer},
      {"torch.jit._pickle.build_tensorlist", Kind::tensor},
      {"torch.jit._pickle.build_doublelist", Kind::number},
      {"torch.jit._pickle.build_boollist", Kind::boolean}};
  return all;
}

// Runs a pickle like torch/csrc/jit/serialization/unpickler.cpp.
class Checker final : public PickleMachine {
 public:
  Checker(const std::string& where, std::string_view pickle, const std::string& folder,
          const ZipMembers& members)
      : PickleMachine(where, pickle, "torch.jit.save"), folder_(folder), members_(members) {}

  void check_all() {
    run();
    check(rest().empty(), "it does not end in one value");
  }

 private:
  void other(uint8_t code) override {
    if (code != 0x81) return PickleMachine::other(code);
    check(pop().kind == Kind::tuple, "a new object has no arguments");
  }

  Value global(std::string_view text) override {
    size_t end = text.find('\n');
    std::string_view module = text.substr(0, end), name = text.substr(end + 1);
    if (module == "torch" && name.ends_with("Storage")) {
      auto dtype = dtype_of(name);
      check(dtype.has_value(), "a storage is of an unknown type");
      return {.kind = Kind::dtype, .dtype = *dtype};
    }
    if (module == "torch" && name.starts_with("per_"))
      return {.kind = Kind::integer};  // LibTorch's own
    bool is_refused = module == "__main__" || module == "torch._tensor" ||
                      module == "torch.distributed.rpc" || (module == "torch" && name != "device");
    require(!is_refused, where_, "the function ", in_quotes(pickled_name(text)),
            " is not for TorchScript");
    return {.kind = Kind::function, .text = text};
  }

  // LibTorch handles both instructions in the same way.
  Value build(const Value& object, const Value& state) override {
    check(object.kind == Kind::function, "it calls a value that is not a function");
    return reduce(object, state);
  }

  Value reduce(const Value& function, const Value& given) override {
    const std::string name = pickled_name(function.text);
    if (name == "torch._utils._rebuild_tensor_v2" || name == "torch._utils._rebuild_qtensor") {
      bool is_quantized = name.ends_with("_rebuild_qtensor");
      const Values& args = arguments(given, {Kind::storage, Kind::integer, Kind::tuple, Kind::tuple,
                                             is_quantized ? Kind::tuple : Kind::boolean});
      check(args.size() >= 6, "a tensor has too few arguments");
      check_inside(args[0].integer, args[1].integer, integers(args[2]), integers(args[3]));
      return {.kind = Kind::tensor};
    }
    if (name == "torch._utils._rebuild_sparse_tensor") return {.kind = Kind::object};
    if (name == "torch.device" || name == "builtins.complex") return {};
    if (name == "collections.OrderedDict") return {};
    if (name == "torch.jit._pickle.restore_type_tag") {
      check(given.kind == Kind::tuple && given.items().size() == 2 &&
                (given.items()[0].kind == Kind::list || given.items()[0].kind == Kind::dict) &&
                given.items()[1].kind == Kind::text,
            "a type is given to what has none");
      return given.items()[0];
    }
    for (const auto& [list, kind] : lists_of_a_kind()) {
      if (name != list) continue;
      Value result = arguments(given, {Kind::list})[0];
      for (const Value& each : result.items())
        check(each.kind == kind, "a list has an element of another type");
      return result;
    }
    check(!name.starts_with("torch.jit._pickle.") && !name.starts_with("torch._utils."),
          "an unknown function is called");
    return {.kind = Kind::object, .object_depth = given.depth() + 1};
  }

  Value storage(const Value& id) override {
    const Values& args =
        arguments(id, {Kind::text, Kind::dtype, Kind::text, Kind::text, Kind::integer});
    check(args[0].text == "storage", "it refers to something that is not a storage");
    auto found = members_.find(folder_ + std::string(args[2].text));
    storage_bytes(args[2].text, args[4].integer, args[1].dtype,
                  found == members_.end() ? 0 : found->second.size);
    return {.kind = Kind::storage, .integer = args[4].integer};
  }

  const std::string& folder_;
  const ZipMembers& members_;
};

}  // namespace

void check_pickle(const std::string& where, std::string_view pickle, const std::string& folder,
                  const ZipMembers& members) {
  Checker(where, pickle, folder, members).check_all();
}

}  // namespace redco::io
