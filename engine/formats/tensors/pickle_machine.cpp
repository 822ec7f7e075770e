// Runs the instructions of pickles without calling anything.

#include "pickle_machine.h"

#include "../../io/strict_json.h"

#include <redco/error.h>

#include <algorithm>
#include <bit>
#include <iterator>

namespace redco::io {

namespace {

using Kind = PickleKind;
using Value = PickleValue;
using Values = PickleValues;

static_assert(std::endian::native == std::endian::little, "integers of pickles are little-endian");
constexpr int max_pickle_depth = 200;  // of nested values, which are destroyed recursively
constexpr size_t max_pickle_dimensions = 64;
// Limits memory: a value takes up to 150 bytes. A tensor has 30 values.
constexpr size_t max_pickle_values = size_t{1} << 21;
constexpr int64_t max_item_size = 16;  // that of complex numbers

}  // namespace

int PickleValue::depth() const { return contents ? contents->depth : object_depth; }

const Values& PickleValue::items() const { return contents->items; }

std::string pickled_name(std::string_view text) {
  std::string name(text);
  std::ranges::replace(name, '\n', '.');
  return name;
}

Value PickleMachine::run() {
  check(number<uint8_t>() == 0x80 && number<uint8_t>() == 2, "it is no pickle of protocol 2");
  stack_.clear();
  memo_.clear();
  while (step(number<uint8_t>())) {
  }
  check(stack_.size() == 1 && marks_.empty(), "it does not end in one value");
  return pop();
}

void PickleMachine::check(bool is_right, const char* what) const {
  require(is_right, where_, what, ": the pickle is damaged or not from ", writer_);
}

std::string_view PickleMachine::take(size_t size) {
  check(size <= rest_.size(), "it is cut short");
  std::string_view taken = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return taken;
}

std::string_view PickleMachine::line() {
  size_t end = rest_.find('\n');
  check(end != rest_.npos, "a name is cut short");
  std::string_view text = take(end);
  take(1);
  return text;
}

// ---- The stack

void PickleMachine::count_value() {
  require(++n_values_ <= max_pickle_values, where_, "it has more than ", max_pickle_values,
          " values");
}

void PickleMachine::push(Value value) {
  check(value.depth() <= max_pickle_depth, "its values nest too deep");
  count_value();
  stack_.push_back(std::move(value));
}

Value PickleMachine::pop() {
  check(stack_.size() > bottom(), "a value is missing");
  Value value = std::move(stack_.back());
  stack_.pop_back();
  return value;
}

Values PickleMachine::pop_to_mark() {
  check(!marks_.empty(), "a mark is missing");
  auto from = stack_.begin() + std::ptrdiff_t(marks_.back());
  marks_.pop_back();
  Values values(std::make_move_iterator(from), std::make_move_iterator(stack_.end()));
  stack_.erase(from, stack_.end());
  return values;
}

Values PickleMachine::pop_values(size_t n) {
  Values values(n);
  for (size_t i = n; i-- > 0;) values[i] = pop();
  return values;
}

Value& PickleMachine::top(Kind kind) {
  check(stack_.size() > bottom() && stack_.back().kind == kind, "a value is of the wrong kind");
  return stack_.back();
}

void PickleMachine::push_container(Kind kind, Values values) {
  Value value{.kind = kind, .contents = std::make_shared<PickleContents>()};
  fill(value, std::move(values));
  push(std::move(value));
}

// A container that is inside another cannot change: so none contains itself, and depths stay
// correct.
void PickleMachine::fill(Value& container, Values values) {
  PickleContents& contents = *container.contents;
  for (const Value& each : values) {
    contents.depth = std::max(contents.depth, each.depth() + 1);
    if (each.contents) each.contents->is_used = true;
  }
  check(contents.depth <= max_pickle_depth, "its values nest too deep");
  check(!contents.is_used, "a value changes after it was put into another");
  check(container.kind != Kind::dict || values.size() % 2 == 0,
        "a dictionary has a key without a value");
  contents.items.insert(contents.items.end(), std::make_move_iterator(values.begin()),
                        std::make_move_iterator(values.end()));
}

// ---- Instructions

bool PickleMachine::step(uint8_t code) {
  switch (code) {
    case '.':
      return false;
    case '(':
      check(marks_.size() <= max_pickle_depth, "its values nest too deep");
      marks_.push_back(stack_.size());
      break;
    case 'N':
      push({});
      break;
    case 0x88:
    case 0x89:
      push({.kind = Kind::boolean, .integer = code == 0x88});
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
      push_long();
      break;
    case 'G':
      push({.kind = Kind::number,
            .number = std::bit_cast<double>(__builtin_bswap64(number<uint64_t>()))});
      break;
    case 'X':
      push({.kind = Kind::text, .text = take(number<uint32_t>())});
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
    case 'c': {
      std::string_view module = line(), name = line();
      push(global({module.data(), module.size() + 1 + name.size()}));
      break;
    }
    case 'R': {
      Value arguments = pop(), function = pop();
      check(function.kind == Kind::function, "it calls a value that is not a function");
      push(reduce(function, arguments));
      break;
    }
    case 'b': {
      Value state = pop(), object = pop();
      push(build(object, state));
      break;
    }
    case 'Q':
      push(storage(pop()));
      break;
    default:
      other(code);
  }
  return true;
}

void PickleMachine::other(uint8_t code) {
  fail(where_, "the instruction ", int{code}, " is unknown: the pickle is damaged or not from ",
       writer_);
}

// An integer of up to 8 bytes, little-endian with a sign.
void PickleMachine::push_long() {
  std::string_view bytes = take(number<uint8_t>());
  check(bytes.size() <= sizeof(int64_t), "an integer is beyond 64 bits");
  bool is_negative = !bytes.empty() && (bytes.back() & 0x80) != 0;
  int64_t value = is_negative ? -1 : 0;
  std::memcpy(&value, bytes.data(), bytes.size());
  push_integer(value);
}

// Memo ids must be consecutive, because a large id would take much memory.
void PickleMachine::put(size_t id) {
  check(id <= memo_.size() && stack_.size() > bottom(), "a value is kept under a wrong number");
  if (id == memo_.size()) {
    count_value();
    memo_.emplace_back();
  }
  memo_[id] = stack_.back();
}

void PickleMachine::get(size_t id) {
  check(id < memo_.size(), "it refers to a missing value");
  push(memo_[id]);
}

// ---- Arguments

const Values& PickleMachine::arguments(const Value& tuple,
                                       std::initializer_list<Kind> kinds) const {
  check(tuple.kind == Kind::tuple && tuple.items().size() >= kinds.size(),
        "a function has too few arguments");
  auto value = tuple.items().begin();
  for (Kind kind : kinds) check((value++)->kind == kind, "an argument is of the wrong kind");
  return tuple.items();
}

std::vector<int64_t> PickleMachine::integers(const Value& tuple) const {
  std::vector<int64_t> all;
  for (const Value& each : tuple.items()) {
    check(each.kind == Kind::integer, "a size or stride is no integer");
    all.push_back(each.integer);
  }
  return all;
}

void PickleMachine::check_inside(int64_t n_stored, int64_t offset,
                                 const std::vector<int64_t>& sizes,
                                 const std::vector<int64_t>& strides) const {
  check(sizes.size() == strides.size() && sizes.size() <= max_pickle_dimensions && offset >= 0,
        "a tensor has wrong dimensions");
  int64_t last = offset, bytes = max_item_size;
  bool is_empty = false, is_possible = true;
  for (size_t i = 0; i < sizes.size(); ++i) {
    int64_t step = 0;
    is_possible = is_possible && sizes[i] >= 0 && strides[i] >= 0 &&
                  !__builtin_mul_overflow(bytes, std::max<int64_t>(sizes[i], 1), &bytes) &&
                  !__builtin_mul_overflow(std::max<int64_t>(sizes[i] - 1, 0), strides[i], &step) &&
                  !__builtin_add_overflow(last, step, &last);
    is_empty = is_empty || sizes[i] == 0;
  }
  check(is_possible && (is_empty ? offset <= n_stored : last < n_stored),
        "a tensor reaches beyond its storage");
}

int64_t PickleMachine::storage_bytes(std::string_view key, int64_t n, at::ScalarType dtype,
                                     uint64_t there) const {
  int64_t bytes = 0;
  check(n >= 0 && !__builtin_mul_overflow(n, int64_t(c10::elementSize(dtype)), &bytes),
        "a storage has an impossible size");
  require(uint64_t(bytes) <= there, where_, "the storage ", in_quotes(std::string(key)), " has ",
          bytes, " bytes, its file has ", there, ": the archive is damaged");
  return bytes;
}

}  // namespace redco::io
