// Checks the pickles of TorchScript archives.

#include "torchscript_pickle.h"

#include "strict_json.h"

#include <redco/error.h>

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace redco::io {

namespace {

static_assert(std::endian::native == std::endian::little, "integers of pickles are little-endian");
constexpr int max_depth = 200;  // of nested values, which are destroyed recursively
constexpr size_t max_dimensions = 64;

// The kind of a value, as far as LibTorch's safety depends on it.
enum class Kind {
  plain,
  boolean,
  integer,
  number,
  text,
  tuple,
  list,
  dict,
  dtype,
  storage,
  tensor,
  object,
  function
};

struct Value;
using Values = std::vector<Value>;

struct Value {
  Kind kind = Kind::plain;
  int64_t integer = 0;                  ///< or the elements of a storage
  size_t item_size = 0;                 ///< of a dtype
  std::string text = {};                ///< or the name of a function
  std::shared_ptr<Values> values = {};  ///< of a tuple, list or dict
  int depth = 0;
};

// The item size of a storage type.
std::optional<size_t> item_size_of(const std::string& storage) {
#define REDCO_CASE(_, name) \
  if (storage == #name "Storage") return c10::elementSize(c10::ScalarType::name);
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

// Runs a pickle like torch/csrc/jit/serialization/unpickler.cpp, on values without contents.
class Checker {
 public:
  Checker(const std::string& where, std::string_view pickle, const std::string& folder,
          const ZipRecords& records)
      : where_(where), rest_(pickle), folder_(folder), records_(records) {}

  void run() {
    check(number<uint8_t>() == 0x80 && number<uint8_t>() == 2, "it is no pickle of protocol 2");
    while (step(number<uint8_t>())) {
    }
    check(stack_.size() == 1 && marks_.empty() && rest_.empty(), "it does not end in one value");
  }

 private:
  void check(bool is_right, const char* what) const {
    require(is_right, where_, what, ": the pickle is damaged or not from torch.jit.save");
  }

  std::string_view take(size_t size) {
    check(size <= rest_.size(), "it is cut short");
    std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }

  std::string line() {
    size_t end = rest_.find('\n');
    check(end != rest_.npos, "a name is cut short");
    std::string text(take(end));
    take(1);
    return text;
  }

  // ---- The stack; values below a mark are inaccessible.

  void push(Value value) {
    check(value.depth <= max_depth, "its values nest too deep");
    stack_.push_back(std::move(value));
  }
  void push_integer(int64_t integer) { push({.kind = Kind::integer, .integer = integer}); }

  size_t bottom() const { return marks_.empty() ? 0 : marks_.back(); }

  Value pop() {
    check(stack_.size() > bottom(), "a value is missing");
    Value value = std::move(stack_.back());
    stack_.pop_back();
    return value;
  }

  Values pop_to_mark() {
    check(!marks_.empty(), "a mark is missing");
    auto from = stack_.begin() + std::ptrdiff_t(marks_.back());
    marks_.pop_back();
    Values values(std::make_move_iterator(from), std::make_move_iterator(stack_.end()));
    stack_.erase(from, stack_.end());
    return values;
  }

  Values pop_values(size_t n) {
    Values values(n);
    for (size_t i = n; i-- > 0;) values[i] = pop();
    return values;
  }

  void push_container(Kind kind, Values values) {
    Value value{.kind = kind, .values = std::make_shared<Values>()};
    fill(value, std::move(values));
    push(std::move(value));
  }

  // A container must be filled before it is put into another, so that depths are correct.
  void fill(Value& container, Values values) {
    int depth = 0;
    for (const Value& each : values) depth = std::max(depth, each.depth + 1);
    container.depth = std::max(container.depth, depth);
    check(container.depth <= max_depth, "its values nest too deep");
    if (container.kind == Kind::dict) {
      check(values.size() % 2 == 0, "a dictionary has a key without a value");
      return;
    }
    container.values->insert(container.values->end(), std::make_move_iterator(values.begin()),
                             std::make_move_iterator(values.end()));
  }

  Value& top(Kind kind) {
    check(stack_.size() > bottom() && stack_.back().kind == kind, "a value is of the wrong kind");
    return stack_.back();
  }

  // ---- Instructions

  bool step(uint8_t code) {
    switch (code) {
      case '.':
        return false;
      case '(':
        marks_.push_back(stack_.size());
        break;
      case 'N':
        push({});
        break;
      case 0x88:
      case 0x89:
        push({.kind = Kind::boolean});
        break;
      case 'K':
        push_integer(number<uint8_t>());
        break;
      case 'M':
        push_integer(number<uint16_t>());
        break;
      case 'J':
        push_integer(number<int32_t>());
        break;
      case 0x8a:
        check(number<uint8_t>() == 8, "a long integer has not 8 bytes");
        push_integer(number<int64_t>());
        break;
      case 'G':
        take(8);
        push({.kind = Kind::number});
        break;
      case 'X':
        push({.kind = Kind::text, .text = std::string(take(number<uint32_t>()))});
        break;
      case ')':
        push_container(Kind::tuple, {});
        break;
      case ']':
        push_container(Kind::list, {});
        break;
      case '}':
        push_container(Kind::dict, {});
        break;
      case 't':
        push_container(Kind::tuple, pop_to_mark());
        break;
      case 'l':
        push_container(Kind::list, pop_to_mark());
        break;
      case 'd':
        push_container(Kind::dict, pop_to_mark());
        break;
      case 0x85:
      case 0x86:
      case 0x87:
        push_container(Kind::tuple, pop_values(code - 0x84u));
        break;
      case 'e':
      case 'u': {
        Values values = pop_to_mark();
        fill(top(code == 'e' ? Kind::list : Kind::dict), std::move(values));
        break;
      }
      case 's': {
        Values values = pop_values(2);
        fill(top(Kind::dict), std::move(values));
        break;
      }
      case 'q':
        put(number<uint8_t>());
        break;
      case 'r':
        put(number<uint32_t>());
        break;
      case 'h':
        get(number<uint8_t>());
        break;
      case 'j':
        get(number<uint32_t>());
        break;
      case 'c':
        push_global();
        break;
      case 0x81:
        check(pop().kind == Kind::tuple, "a new object has no arguments");
        break;
      case 'b':
      case 'R':
        reduce();
        break;
      case 'Q':
        push_storage();
        break;
      default:
        fail(where_, "the instruction ", int{code}, " is unknown: the pickle is damaged");
    }
    return true;
  }

  // Memo ids must be consecutive, because LibTorch would allocate memory for any id.
  void put(size_t id) {
    check(id <= memo_.size() && stack_.size() > bottom(), "a value is kept under a wrong number");
    if (id == memo_.size()) memo_.emplace_back();
    memo_[id] = stack_.back();
    // What is put into it later must not make a loop.
  }

  void get(size_t id) {
    check(id < memo_.size(), "it refers to a missing value");
    push(memo_[id]);
  }

  void push_global() {
    std::string module = line(), name = line(), full = module + "." + name;
    if (module == "torch" && name.ends_with("Storage")) {
      auto size = item_size_of(name);
      check(size.has_value(), "a storage is of an unknown type");
      return push({.kind = Kind::dtype, .item_size = *size});
    }
    if (module == "torch" && name.starts_with("per_")) return push_integer(0);  // LibTorch's own
    bool is_refused = module == "__main__" || module == "torch._tensor" ||
                      module == "torch.distributed.rpc" || (module == "torch" && name != "device");
    require(!is_refused, where_, "the function ", in_quotes(full), " is not for TorchScript");
    push({.kind = Kind::function, .text = full});
  }

  const Values& argument(const Value& tuple, std::initializer_list<Kind> kinds) const {
    check(tuple.kind == Kind::tuple && tuple.values->size() >= kinds.size(),
          "a function has too few arguments");
    auto value = tuple.values->begin();
    for (Kind kind : kinds) check((value++)->kind == kind, "an argument is of the wrong kind");
    return *tuple.values;
  }

  void reduce() {
    Value arg = pop(), function = pop();
    check(function.kind == Kind::function, "it calls a value that is not a function");
    const std::string& name = function.text;
    if (name == "torch._utils._rebuild_tensor_v2" || name == "torch._utils._rebuild_qtensor") {
      bool is_quantized = name.ends_with("_rebuild_qtensor");
      const Values& args = argument(arg, {Kind::storage, Kind::integer, Kind::tuple, Kind::tuple,
                                          is_quantized ? Kind::tuple : Kind::boolean});
      check(args.size() >= 6, "a tensor has too few arguments");
      check_inside(args[0].integer, args[1].integer, integers(args[2]), integers(args[3]));
      return push({.kind = Kind::tensor});
    }
    if (name == "torch._utils._rebuild_sparse_tensor") return push({.kind = Kind::object});
    if (name == "torch.device" || name == "builtins.complex") return push({});
    if (name == "collections.OrderedDict") return push({});
    if (name == "torch.jit._pickle.restore_type_tag") {
      check(arg.kind == Kind::tuple && arg.values->size() == 2 &&
                (arg.values->at(0).kind == Kind::list || arg.values->at(0).kind == Kind::dict) &&
                arg.values->at(1).kind == Kind::text,
            "a type is given to what has none");
      return push(arg.values->at(0));
    }
    for (const auto& [list, kind] : lists_of_a_kind()) {
      if (name != list) continue;
      Value result = argument(arg, {Kind::list})[0];
      for (const Value& each : *result.values)
        check(each.kind == kind, "a list has an element of another type");
      return push(std::move(result));
    }
    check(!name.starts_with("torch.jit._pickle.") && !name.starts_with("torch._utils."),
          "an unknown function is called");
    push({.kind = Kind::object, .depth = arg.depth + 1});
  }

  std::vector<int64_t> integers(const Value& tuple) const {
    std::vector<int64_t> all;
    for (const Value& each : *tuple.values) {
      check(each.kind == Kind::integer, "a size or stride is no integer");
      all.push_back(each.integer);
    }
    return all;
  }

  // The elements of a tensor are among those of its storage.
  void check_inside(int64_t n_stored, int64_t offset, const std::vector<int64_t>& sizes,
                    const std::vector<int64_t>& strides) const {
    check(sizes.size() == strides.size() && sizes.size() <= max_dimensions && offset >= 0,
          "a tensor has wrong dimensions");
    int64_t last = offset, numel = 1;
    bool is_empty = false, is_possible = true;
    for (size_t i = 0; i < sizes.size(); ++i) {
      int64_t step = 0;
      is_possible =
          is_possible && sizes[i] >= 0 && strides[i] >= 0 &&
          !__builtin_mul_overflow(numel, std::max<int64_t>(sizes[i], 1), &numel) &&
          !__builtin_mul_overflow(std::max<int64_t>(sizes[i] - 1, 0), strides[i], &step) &&
          !__builtin_add_overflow(last, step, &last);
      is_empty = is_empty || sizes[i] == 0;
    }
    check(is_possible && (is_empty ? offset <= n_stored : last < n_stored),
          "a tensor reaches beyond its storage");
  }

  void push_storage() {
    Value id = pop();
    const Values& args =
        argument(id, {Kind::text, Kind::dtype, Kind::text, Kind::text, Kind::integer});
    check(args[0].text == "storage", "it refers to a record that is not a storage");
    int64_t n = args[4].integer, bytes = 0;
    check(n >= 0 && !__builtin_mul_overflow(n, int64_t(args[1].item_size), &bytes),
          "a storage has an impossible size");
    auto found = records_.find(folder_ + args[2].text);
    int64_t there = found == records_.end() ? 0 : int64_t(found->second.size);
    require(bytes <= there, where_, "the storage ", in_quotes(args[2].text), " has ", bytes,
            " bytes, its file has ", there, ": the archive is damaged");
    push({.kind = Kind::storage, .integer = n});
  }

  const std::string& where_;
  std::string_view rest_;
  const std::string& folder_;
  const ZipRecords& records_;
  Values stack_, memo_;
  std::vector<size_t> marks_;
};

}  // namespace

void check_pickle(const std::string& where, std::string_view pickle, const std::string& folder,
                  const ZipRecords& records) {
  Checker(where, pickle, folder, records).run();
}

}  // namespace redco::io
