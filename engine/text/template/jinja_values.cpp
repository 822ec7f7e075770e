// Values of Jinja and their operators.

#include "jinja_values.h"

#include "jinja_text.h"

#include <redco/error.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

namespace redco::text::jinja {

namespace {

void count_entry(Value& whole, const Value& entry) {
  whole.depth = std::max(whole.depth, entry.depth + 1);
  whole.size += 1 + entry.size;
  require(whole.depth <= deepest, "lists are nested more than ", deepest, " levels deep");
  require(whole.size <= most_entries, "a list has more than ", most_entries,
          " entries, counting nested ones");
}

// Whether both are one method of one object, as in Python.
bool is_same_method(const Value& a, const Value& b) {
  const auto *m = a.function()->target<BoundMethod>(), *n = b.function()->target<BoundMethod>();
  if (!m || !n || m->name != n->name) return false;
  return m->of.get<std::string>() ? is_equal(m->of, n->of)
                                  : m->of.dict() == n->of.dict() && m->of.list() == n->of.list();
}

bool is_equal_dict(const Value::Dict& a, const Value& b) {
  return a.size() == b.dict()->size() && std::all_of(a.begin(), a.end(), [&](const auto& entry) {
           const Value* other = b.find(entry.first);
           return other != nullptr && is_equal(entry.second, *other);
         });
}

// Integer arithmetic as in Python; throws Error if the result exceeds 64 bits.
Value integer_arithmetic(const std::string& name, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflows = false;
  if (name == "+") {
    overflows = __builtin_add_overflow(a, b, &result);
  } else if (name == "-") {
    overflows = __builtin_sub_overflow(a, b, &result);
  } else if (name == "*") {
    overflows = __builtin_mul_overflow(a, b, &result);
  } else if (name == "**") {
    result = 1;
    // Powers of 0 and of 1 need no more than two steps.
    int64_t n = a >= -1 && a <= 1 ? (b > 0 ? 2 - b % 2 : 0) : b;
    for (; n > 0 && !overflows; --n) overflows = __builtin_mul_overflow(result, a, &result);
  } else {
    require(b != 0, "division by zero");
    overflows = b == -1 && a == INT64_MIN;
    int64_t quotient = overflows ? 0 : a / b, rest = overflows ? 0 : a % b;
    bool rounds = rest != 0 && (rest < 0) != (b < 0);
    result = name == "//" ? quotient - rounds : rounds ? rest + b : rest;
  }
  require(!overflows, "the integer ", a, " ", name, " ", b, " is too large");
  return {result};
}

Value arithmetic(const std::string& name, const Value& a, const Value& b) {
  auto x = number_of(a), y = number_of(b);
  require(x && y, "'", name, "' of ", kind_of(a), " and ", kind_of(b));
  auto m = integer_of(a), n = integer_of(b);
  if (m && n && name != "/" && (name != "**" || *n >= 0)) return integer_arithmetic(name, *m, *n);
  require(*y != 0 || (name != "/" && name != "//" && name != "%"), "division by zero");
  if (name == "+") return {*x + *y};
  if (name == "-") return {*x - *y};
  if (name == "*") return {*x * *y};
  if (name == "/") return {*x / *y};
  if (name == "**") return {std::pow(*x, *y)};
  // As Python: the rest has the divisor's sign, also if it is 0, and decides the quotient.
  double rest = std::fmod(*x, *y);
  if (rest == 0)
    rest = std::copysign(0, *y);
  else if ((rest < 0) != (*y < 0))
    rest += *y;
  if (name == "%") return {rest};
  double quotient = (*x - rest) / *y;
  return {quotient == 0 ? std::copysign(0, *x / *y) : std::round(quotient)};
}

// Repeats a string or list `n` times.
Value repeated(const Value& value, int64_t n) {
  n = std::max<int64_t>(n, 0);
  if (const std::string* text = value.get<std::string>()) {
    if (!text->empty()) check_length(size_t(std::min<int64_t>(n, INT32_MAX)));
    check_length(text->size() * size_t(text->empty() ? 0 : n));
    std::string result;
    for (int64_t i = 0; i < n && !text->empty(); ++i) result += *text;
    return text_like(std::move(result), value);
  }
  Value::List list;
  const Value::List& once = *value.list();
  require(once.empty() || n <= most_entries / int64_t(once.size()), "a list has more than ",
          most_entries, " entries");
  for (int64_t i = 0; i < n && !once.empty(); ++i)
    list.insert(list.end(), once.begin(), once.end());
  return make_list(std::move(list), value.kind);
}

Value joined(const Value& a, const Value& b) {
  const std::string *s = a.get<std::string>(), *t = b.get<std::string>();
  if (s && t && (is_markup(a) || is_markup(b))) {
    std::string text = escaped(a) + escaped(b);
    check_length(text.size());
    return as_markup(std::move(text));
  }
  if (s && t) {
    check_length(s->size() + t->size());
    return {*s + *t};
  }
  require(is_list_or_tuple(a) && is_list_or_tuple(b) && a.kind == b.kind, "'+' of ", kind_of(a),
          " and ", kind_of(b));
  Value::List list = *a.list();
  list.insert(list.end(), b.list()->begin(), b.list()->end());
  return make_list(std::move(list), a.kind);
}

}  // namespace

const Value::List* Value::list() const {
  auto held = get<std::shared_ptr<List>>();
  return held ? held->get() : nullptr;
}

Value::Dict* Value::dict() const {
  auto held = get<std::shared_ptr<Dict>>();
  return held ? held->get() : nullptr;
}

const Value::Function* Value::function() const {
  auto held = get<std::shared_ptr<Function>>();
  return held ? held->get() : nullptr;
}

const Value* Value::find(std::string_view key) const {
  if (const Dict* members = dict())
    for (const auto& [name, value] : *members)
      if (auto text = name.get<std::string>(); text && *text == key) return &value;
  return nullptr;
}

const Value* Value::find(const Value& key) const {
  if (auto text = key.get<std::string>()) return find(std::string_view(*text));
  if (const Dict* members = dict())
    for (const auto& [name, value] : *members)
      if (is_equal(name, key)) return &value;
  return nullptr;
}

Value text_like(std::string text, const Value& other) {
  return {std::move(text), is_markup(other) ? Value::Kind::markup : Value::Kind::plain};
}

Value as_markup(std::string text) { return {std::move(text), Value::Kind::markup}; }

bool is_markup(const Value& value) { return value.kind == Value::Kind::markup; }

std::string escaped(const Value& value) {
  std::string text = to_text(value), result;
  if (is_markup(value)) return text;
  for (char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&#34;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

void require_hash(const Value& value, const char* what) {
  require(!value.dict() && (!value.list() || value.kind == Value::Kind::tuple), what, ": ",
          kind_of(value), " has no hash");
  if (value.list())
    for (const Value& entry : *value.list()) require_hash(entry, what);
}

void set_member(Value::Dict& members, const Value& key, Value value) {
  require_hash(key, "the key of a dictionary");
  for (auto& [name, member] : members)
    if (is_equal(name, key)) {
      member = std::move(value);
      return;
    }
  members.emplace_back(key, std::move(value));
}

void set_member(Value::Named& members, const std::string& name, Value value) {
  for (auto& [key, member] : members)
    if (key == name) {
      member = std::move(value);
      return;
    }
  members.emplace_back(name, std::move(value));
}

Value make_list(Value::List list, Value::Kind kind) {
  Value whole;
  whole.kind = kind;
  for (const Value& entry : list) count_entry(whole, entry);
  whole.data = std::make_shared<Value::List>(std::move(list));
  return whole;
}

Value make_dict(Value::Dict dict, Value::Kind kind) {
  Value whole;
  whole.kind = kind;
  for (const auto& [key, member] : dict) {
    if (key.list()) count_entry(whole, key);
    count_entry(whole, member);
  }
  whole.data = std::make_shared<Value::Dict>(std::move(dict));
  return whole;
}

Value from_json(const Json& json) {
  if (auto boolean = json.get<bool>()) return {*boolean};
  if (auto integer = json.get<int64_t>()) return {*integer};
  if (auto real = json.get<double>()) return {*real};
  if (auto text = json.get<std::string>()) return {*text};
  if (auto entries = json.get<Json::List>()) {
    Value::List list;
    for (const Json& entry : *entries) list.push_back(from_json(entry));
    return make_list(std::move(list));
  }
  if (auto entries = json.get<Json::Object>()) {
    Value::Dict dict;
    for (const auto& [key, entry] : *entries) dict.emplace_back(Value{key}, from_json(entry));
    return make_dict(std::move(dict));
  }
  return {Value::None()};
}

Value make_members(Value::Named members, Value::Kind kind) {
  Value::Dict dict;
  for (auto& [name, member] : members) dict.emplace_back(Value{name}, std::move(member));
  return make_dict(std::move(dict), kind);
}

Value make_function(Value::Function function) {
  return {std::make_shared<Value::Function>(std::move(function))};
}

std::string kind_of(const Value& value) {
  if (auto missing = value.get<Value::Undefined>())
    return "'" + missing->name + "', which is not defined";
  if (value.kind == Value::Kind::tuple) return "a tuple";
  if (value.kind == Value::Kind::generator) return "a generator";
  if (value.kind == Value::Kind::range) return "a range";
  if (value.kind == Value::Kind::name_space) return "a namespace";
  if (value.kind == Value::Kind::loop) return "the loop";
  constexpr const char* names[] = {"",         "none",   "a boolean",    "an integer", "a real",
                                   "a string", "a list", "a dictionary", "a function"};
  return names[value.data.index()];
}

std::optional<double> number_of(const Value& value) {
  if (const bool* boolean = value.get<bool>()) return *boolean;
  if (const int64_t* integer = value.get<int64_t>()) return double(*integer);
  if (const double* real = value.get<double>()) return *real;
  return std::nullopt;
}

std::optional<int64_t> integer_of(const Value& value) {
  if (const bool* boolean = value.get<bool>()) return *boolean;
  if (const int64_t* integer = value.get<int64_t>()) return *integer;
  return std::nullopt;
}

bool is_list_or_tuple(const Value& value) {
  return value.list() && (value.kind == Value::Kind::plain || value.kind == Value::Kind::tuple);
}

bool is_true(const Value& value) {
  if (value.kind == Value::Kind::generator || value.kind == Value::Kind::name_space ||
      value.kind == Value::Kind::loop)
    return true;
  if (const bool* boolean = value.get<bool>()) return *boolean;
  if (const std::string* text = value.get<std::string>()) return !text->empty();
  if (const Value::List* list = value.list()) return !list->empty();
  if (const Value::Dict* dict = value.dict()) return !dict->empty();
  if (value.function()) return true;
  auto number = number_of(value);
  return number && *number != 0;
}

bool is_equal(const Value& a, const Value& b) {
  auto m = integer_of(a), n = integer_of(b);
  if (m && n) return *m == *n;
  auto x = number_of(a), y = number_of(b);
  if (x && y) return *x == *y;
  if (a.data.index() != b.data.index()) return false;
  if (const std::string* text = a.get<std::string>()) return *text == *b.get<std::string>();
  if (a.kind != b.kind) return false;
  if (const Value::List* list = a.list())
    return list == b.list() ||
           std::equal(list->begin(), list->end(), b.list()->begin(), b.list()->end(), is_equal);
  if (const Value::Dict* dict = a.dict())
    return dict == b.dict() || (a.kind == Value::Kind::plain && is_equal_dict(*dict, b));
  if (a.function()) return a.function() == b.function() || is_same_method(a, b);
  return true;  // both are none or undefined
}

int compare(const Value& a, const Value& b) {
  auto m = integer_of(a), n = integer_of(b);
  if (m && n) return *m < *n ? -1 : *m > *n;
  auto x = number_of(a), y = number_of(b);
  if (x && y) return *x < *y ? -1 : *x > *y;
  const std::string *s = a.get<std::string>(), *t = b.get<std::string>();
  if (s && t) return s->compare(*t);
  const Value::List *left = a.list(), *right = b.list();
  require(left && right && a.kind == b.kind, kind_of(a), " and ", kind_of(b),
          " have no order: '<' of both");
  for (size_t i = 0; i < std::min(left->size(), right->size()); ++i)
    if (!is_equal((*left)[i], (*right)[i])) return compare((*left)[i], (*right)[i]);
  return left->size() < right->size() ? -1 : left->size() > right->size();
}

bool contains(const Value& whole, const Value& part) {
  if (whole.get<Value::Undefined>()) return false;
  if (const Value::List* list = whole.list())
    return std::any_of(list->begin(), list->end(),
                       [&](const Value& entry) { return is_equal(entry, part); });
  if (whole.dict() && whole.kind == Value::Kind::plain) return whole.find(part) != nullptr;
  require(whole.get<std::string>(), "'in' of ", kind_of(whole));
  const std::string &text = text_of(whole), &looked_for = text_of(part);
  return memmem(text.data(), text.size(), looked_for.data(), looked_for.size()) != nullptr;
}

bool has_items(const Value& value) {
  return value.list() || value.get<std::string>() ||
         (value.dict() && value.kind == Value::Kind::plain);
}

Value::List items_of(const Value& value, const char* what) {
  if (value.get<Value::Undefined>()) return {};
  require(has_items(value), what, " over ", kind_of(value), ", expected a list");
  if (const Value::List* list = value.list()) return *list;
  Value::List items;
  if (const Value::Dict* dict = value.dict())
    for (const auto& [key, member] : *dict) items.push_back(key);
  else
    for (std::string& character : characters(text_of(value)))
      items.push_back({std::move(character)});
  return items;
}

Value attribute(const Value& owner, const std::string& name) {
  require(!owner.get<Value::Undefined>(), kind_of(owner), ", has no members");
  // In Python methods take precedence over the members of a dictionary.
  if (owner.kind == Value::Kind::plain || owner.kind == Value::Kind::tuple || is_markup(owner))
    if (auto method = find_method(owner, name)) return *method;
  const Value* found = owner.find(name);
  return found ? *found : Value{Value::Undefined{name}};
}

Value member(const Value& owner, const Value& key) {
  require(!owner.get<Value::Undefined>(), kind_of(owner), ", has no members");
  if (owner.dict())
    if (const Value* found = owner.find(key)) return *found;
  if (auto index = integer_of(key)) {
    const Value::List* list = owner.list();
    const std::string* text = owner.get<std::string>();
    Value::List letters;
    if (text) letters = items_of(owner, "");
    if (text) list = &letters;
    auto size = list ? int64_t(list->size()) : 0;
    int64_t at = *index < 0 ? *index + size : *index;
    if (at < 0 || at >= size) return {Value::Undefined{"[" + std::to_string(*index) + "]"}};
    return text ? text_like(text_of((*list)[size_t(at)]), owner) : (*list)[size_t(at)];
  }
  const std::string* name = key.get<std::string>();
  if (name == nullptr) return {Value::Undefined{"[" + kind_of(key) + "]"}};
  return attribute(owner, *name);
}

Value at_path(const Value& owner, std::string_view path, const Value* fallback) {
  Value value = owner;
  while (true) {
    size_t dot = path.find('.');
    std::string part(path.substr(0, dot));
    int64_t index = 0;
    auto parsed = std::from_chars(part.data(), part.data() + part.size(), index);
    bool is_index = parsed.ec == std::errc() && parsed.ptr == part.data() + part.size();
    value = is_index ? member(value, {index}) : member(value, {part});
    if (fallback && value.get<Value::Undefined>()) value = *fallback;
    if (dot == path.npos) return value;
    path.remove_prefix(dot + 1);
  }
}

Value slice(const Value& whole, std::optional<int64_t> begin, std::optional<int64_t> end,
            std::optional<int64_t> step) {
  const Value::List* list = whole.list();
  require((list || whole.get<std::string>()) && whole.kind != Value::Kind::generator, "a slice of ",
          kind_of(whole));
  Value::List letters;
  if (!list) letters = items_of(whole, "");
  const Value::List& all = list ? *list : letters;
  auto size = int64_t(all.size());
  int64_t by = step.value_or(1);
  require(by != 0, "a slice's step is 0");
  int64_t lowest = by > 0 ? 0 : -1, highest = by > 0 ? size : size - 1;
  auto clamp = [&](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? std::max(at, -size - 1) + size : at, lowest, highest);
  };
  int64_t first = begin ? clamp(*begin) : by > 0 ? lowest : highest;
  int64_t last = end ? clamp(*end) : by > 0 ? highest : lowest;
  Value::List chosen;
  by = std::clamp<int64_t>(by, -size - 1, size + 1);
  for (int64_t i = first; by > 0 ? i < last : i > last; i += by) chosen.push_back(all[size_t(i)]);
  if (list) return make_list(std::move(chosen), whole.kind);
  std::string text;
  for (const Value& letter : chosen) text += text_of(letter);
  return text_like(std::move(text), whole);
}

Value apply_operator(const std::string& name, const Value& a, const Value& b) {
  if (name == "==") return {is_equal(a, b)};
  if (name == "!=") return {!is_equal(a, b)};
  if (name == "in") return {contains(b, a)};
  if (name == "not in") return {!contains(b, a)};
  if (name == "<") return {compare(a, b) < 0};
  if (name == ">") return {compare(a, b) > 0};
  if (name == "<=") return {compare(a, b) <= 0};
  if (name == ">=") return {compare(a, b) >= 0};
  if (name == "~") return joined({to_text(a)}, {to_text(b)});
  auto is_text_or_list = [](const Value& value) {
    return value.get<std::string>() || is_list_or_tuple(value);
  };
  if (name == "+" && (is_text_or_list(a) || is_text_or_list(b))) return joined(a, b);
  if (name == "*" && is_text_or_list(a) && integer_of(b)) return repeated(a, *integer_of(b));
  if (name == "*" && is_text_or_list(b) && integer_of(a)) return repeated(b, *integer_of(a));
  if (name == "%" && a.get<std::string>())
    return formatted(a, b.kind == Value::Kind::tuple ? *b.list() : Value::List{b});
  return arithmetic(name, a, b);
}

const Value* argument(const Arguments& arguments, size_t index, std::string_view name) {
  if (index < arguments.positional.size()) return &arguments.positional[index];
  for (const auto& [given, value] : arguments.named)
    if (given == name) return &value;
  return nullptr;
}

const std::string& text_of(const Value& value) {
  const std::string* text = value.get<std::string>();
  require(text != nullptr, "expected a string, got ", kind_of(value));
  return *text;
}

std::string text_argument(const Arguments& arguments, size_t index, std::string_view name) {
  const Value* value = argument(arguments, index, name);
  require(value != nullptr, "the argument ", index + 1, ", ", name, ", is missing");
  return text_of(*value);
}

std::optional<int64_t> integer_argument(const Arguments& arguments, size_t index,
                                        std::string_view name) {
  const Value* value = argument(arguments, index, name);
  if (value == nullptr || value->get<Value::None>()) return std::nullopt;
  auto integer = integer_of(*value);
  require(integer.has_value(), "the argument ", name, ": expected an integer, got ",
          kind_of(*value));
  return integer;
}

bool flag_argument(const Arguments& arguments, size_t index, std::string_view name) {
  const Value* value = argument(arguments, index, name);
  return value != nullptr && is_true(*value);
}

void check_length(size_t size) {
  require(size <= longest_text, "a text grows beyond ", longest_text, " bytes");
}

}  // namespace redco::text::jinja
