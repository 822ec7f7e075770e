#include "jinja_values.h"

#include "utf8.h"

#include <redco/error.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace redco::text::jinja {

namespace {

// The longest text or list that a template may make.
constexpr size_t longest = 1 << 26;
constexpr int64_t most_entries = 1'000'000;
constexpr int deepest = 100;

template <class T>
std::string names_of(const std::map<std::string, T>& table) {
  std::string names;
  for (const auto& [name, entry] : table) names += (names.empty() ? "" : ", ") + name;
  return names;
}

template <class T>
const T& look_up(const std::map<std::string, T>& table, const char* what, const std::string& name) {
  auto found = table.find(name);
  require(found != table.end(), "the ", what, " '", name, "' is not supported; supported are ",
          names_of(table));
  return found->second;
}

const std::string& text_of(const Value& value) {
  const std::string* text = value.get<std::string>();
  require(text != nullptr, "expected a string, got ", kind_of(value));
  return *text;
}

std::optional<double> number_of(const Value& value) {
  if (const bool* boolean = value.get<bool>()) return *boolean;
  if (const int64_t* integer = value.get<int64_t>()) return static_cast<double>(*integer);
  if (const double* real = value.get<double>()) return *real;
  return std::nullopt;
}

const Value* argument(const Arguments& arguments, size_t index, const char* name) {
  if (index < arguments.positional.size()) return &arguments.positional[index];
  auto found = arguments.named.find(name);
  return found == arguments.named.end() ? nullptr : &found->second;
}

std::string text_argument(const Arguments& arguments, size_t index, const char* name) {
  const Value* value = argument(arguments, index, name);
  require(value != nullptr, "the argument ", index + 1, ", ", name, ", is missing");
  return text_of(*value);
}

// ---- strings ----

void check_length(size_t size) {
  require(size <= longest, "a text grows beyond ", longest, " bytes");
}

// As text.find(part, begin), in linear time.
size_t position_of(const std::string& text, const std::string& part, size_t begin) {
  const void* found = memmem(text.data() + begin, text.size() - begin, part.data(), part.size());
  return found ? static_cast<size_t>(static_cast<const char*>(found) - text.data()) : text.npos;
}

std::string stripped(const std::string& text, const Arguments& arguments, bool left, bool right) {
  const Value* given = argument(arguments, 0, "chars");
  std::string_view rest = text;
  if (given == nullptr) {
    if (left) rest.remove_prefix(leading_whitespace(rest));
    if (right) rest.remove_suffix(trailing_whitespace(rest));
  } else {
    const std::string& set = text_of(*given);
    while (left && !rest.empty() && set.find(rest.front()) != set.npos) rest.remove_prefix(1);
    while (right && !rest.empty() && set.find(rest.back()) != set.npos) rest.remove_suffix(1);
  }
  return std::string(rest);
}

template <int (*change)(int)>
std::string in_case(std::string text) {
  for (char& c : text)
    if ((c & 0x80) == 0) c = static_cast<char>(change(c));
  return text;
}

std::string capitalized(const std::string& text) {
  std::string result = in_case<std::tolower>(text);
  return text.empty() ? text : in_case<std::toupper>(result.substr(0, 1)) + result.substr(1);
}

std::string replaced(const std::string& text, const Arguments& arguments) {
  std::string from = text_argument(arguments, 0, "old"), to = text_argument(arguments, 1, "new");
  require(!from.empty(), "replace: the text to replace is empty");
  std::string result;
  size_t done = 0;
  for (size_t at = 0; (at = position_of(text, from, done)) != text.npos; done = at + from.size()) {
    result.append(text, done, at - done).append(to);
    check_length(result.size());
  }
  return result.append(text, done);
}

Value split(const std::string& text, const Arguments& arguments) {
  Value::List parts;
  auto add_part = [&](std::string part) {
    require(parts.size() < most_entries, "split: more than ", most_entries, " parts");
    parts.push_back({std::move(part)});
  };
  const Value* separator = argument(arguments, 0, "sep");
  if (separator == nullptr) {
    std::string word;
    for (char c : text + " ") {
      if (!is_whitespace(static_cast<unsigned char>(c))) {
        word += c;
      } else if (!word.empty()) {
        add_part(word);
        word.clear();
      }
    }
    return make_list(std::move(parts));
  }
  const std::string& by = text_of(*separator);
  require(!by.empty(), "split: the separator is empty");
  size_t done = 0;
  for (size_t at = 0; (at = position_of(text, by, done)) != text.npos; done = at + by.size())
    add_part(text.substr(done, at - done));
  add_part(text.substr(done));
  return make_list(std::move(parts));
}

// ---- lists and dictionaries ----

Value items(const Value& value) {
  const Value::Dict* dict = value.dict();
  require(dict != nullptr, "items: expected a dictionary, got ", kind_of(value));
  Value::List pairs;
  for (const auto& [key, member] : *dict) pairs.push_back(make_list({{key}, member}));
  return make_list(std::move(pairs));
}

Value length(const Value& value) {
  if (const Value::List* list = value.list()) return {static_cast<int64_t>(list->size())};
  if (const Value::Dict* dict = value.dict()) return {static_cast<int64_t>(dict->size())};
  const std::string& text = text_of(value);
  return {static_cast<int64_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }))};
}

Value join(const Value& value, const Arguments& arguments) {
  const Value::List* list = value.list();
  require(list != nullptr, "join: expected a list, got ", kind_of(value));
  std::string between = arguments.positional.empty() ? "" : text_argument(arguments, 0, "d"), text;
  for (size_t i = 0; i < list->size(); ++i) {
    text += (i ? between : "") + to_text((*list)[i]);
    check_length(text.size());
  }
  return {text};
}

Value end_of_list(const Value& value, bool first) {
  const Value::List* list = value.list();
  require(list != nullptr, "expected a list, got ", kind_of(value));
  if (list->empty()) return {Value::Undefined{first ? "first" : "last"}};
  return first ? list->front() : list->back();
}

using Filter = Value (*)(const Value&, const Arguments&);
const std::map<std::string, Filter>& filters() {
  static const std::map<std::string, Filter> table = {
      {"trim", [](const Value& v,
                  const Arguments& a) { return Value{stripped(text_of(v), a, true, true)}; }},
      {"upper",
       [](const Value& v, const Arguments&) { return Value{in_case<std::toupper>(text_of(v))}; }},
      {"lower",
       [](const Value& v, const Arguments&) { return Value{in_case<std::tolower>(text_of(v))}; }},
      {"capitalize",
       [](const Value& v, const Arguments&) { return Value{capitalized(text_of(v))}; }},
      {"replace",
       [](const Value& v, const Arguments& a) { return Value{replaced(text_of(v), a)}; }},
      {"length", [](const Value& v, const Arguments&) { return length(v); }},
      {"count", [](const Value& v, const Arguments&) { return length(v); }},
      {"join", join},
      {"items", [](const Value& v, const Arguments&) { return items(v); }},
      {"first", [](const Value& v, const Arguments&) { return end_of_list(v, true); }},
      {"last", [](const Value& v, const Arguments&) { return end_of_list(v, false); }},
      {"string", [](const Value& v, const Arguments&) { return Value{to_text(v)}; }},
      {"safe", [](const Value& v, const Arguments&) { return v; }},
      {"list",
       [](const Value& v, const Arguments&) {
         require(v.list() != nullptr, "list: expected a list, got ", kind_of(v));
         return make_list(*v.list());
       }},
      {"default",
       [](const Value& v, const Arguments& a) {
         const Value* fallback = argument(a, 0, "default_value");
         const Value* also_false = argument(a, 1, "boolean");
         bool missing =
             v.get<Value::Undefined>() || (also_false && is_true(*also_false) && !is_true(v));
         return !missing ? v : fallback ? *fallback : Value{std::string()};
       }},
      {"tojson",
       [](const Value& v, const Arguments& a) {
         const Value* indent = argument(a, 0, "indent");
         const int64_t* n = indent ? indent->get<int64_t>() : nullptr;
         require(!n || (*n >= 0 && *n <= 16), "tojson: indent is out of range");
         return Value{to_json(v, n ? static_cast<int>(*n) : -1)};
       }},
  };
  return table;
}

using Method = Value (*)(const std::string&, const Arguments&);
const std::map<std::string, Method>& string_methods() {
  static const std::map<std::string, Method> table = {
      {"strip",
       [](const std::string& s, const Arguments& a) { return Value{stripped(s, a, true, true)}; }},
      {"lstrip",
       [](const std::string& s, const Arguments& a) { return Value{stripped(s, a, true, false)}; }},
      {"rstrip",
       [](const std::string& s, const Arguments& a) { return Value{stripped(s, a, false, true)}; }},
      {"upper",
       [](const std::string& s, const Arguments&) { return Value{in_case<std::toupper>(s)}; }},
      {"lower",
       [](const std::string& s, const Arguments&) { return Value{in_case<std::tolower>(s)}; }},
      {"capitalize", [](const std::string& s, const Arguments&) { return Value{capitalized(s)}; }},
      {"replace", [](const std::string& s, const Arguments& a) { return Value{replaced(s, a)}; }},
      {"split", split},
      {"startswith",
       [](const std::string& s, const Arguments& a) {
         return Value{s.starts_with(text_argument(a, 0, "prefix"))};
       }},
      {"endswith",
       [](const std::string& s, const Arguments& a) {
         return Value{s.ends_with(text_argument(a, 0, "suffix"))};
       }},
  };
  return table;
}

using Test = bool (*)(const Value&, const Arguments&);
const std::map<std::string, Test>& tests() {
  static const std::map<std::string, Test> table = {
      {"defined", [](const Value& v, const Arguments&) { return !v.get<Value::Undefined>(); }},
      {"undefined",
       [](const Value& v, const Arguments&) { return v.get<Value::Undefined>() != nullptr; }},
      {"none", [](const Value& v, const Arguments&) { return v.get<Value::None>() != nullptr; }},
      {"string", [](const Value& v, const Arguments&) { return v.get<std::string>() != nullptr; }},
      {"mapping", [](const Value& v, const Arguments&) { return v.dict() != nullptr; }},
      {"sequence", [](const Value& v,
                      const Arguments&) { return v.list() || v.dict() || v.get<std::string>(); }},
      {"iterable", [](const Value& v,
                      const Arguments&) { return v.list() || v.dict() || v.get<std::string>(); }},
      {"boolean", [](const Value& v, const Arguments&) { return v.get<bool>() != nullptr; }},
      {"integer", [](const Value& v, const Arguments&) { return v.get<int64_t>() != nullptr; }},
      {"float", [](const Value& v, const Arguments&) { return v.get<double>() != nullptr; }},
      {"number",
       [](const Value& v, const Arguments&) { return v.get<int64_t>() || v.get<double>(); }},
      {"true", [](const Value& v, const Arguments&) { return v.get<bool>() && *v.get<bool>(); }},
      {"false", [](const Value& v, const Arguments&) { return v.get<bool>() && !*v.get<bool>(); }},
      {"equalto",
       [](const Value& v, const Arguments& a) {
         return !a.positional.empty() && is_equal(v, a.positional[0]);
       }},
  };
  return table;
}

bool contains(const Value& whole, const Value& part) {
  if (const Value::List* list = whole.list())
    return std::any_of(list->begin(), list->end(),
                       [&](const Value& entry) { return is_equal(entry, part); });
  if (whole.dict()) return part.get<std::string>() && whole.find(*part.get<std::string>());
  return position_of(text_of(whole), text_of(part), 0) != std::string::npos;
}

Value arithmetic(const std::string& name, const Value& a, const Value& b) {
  auto x = number_of(a), y = number_of(b);
  require(x && y, "'", name, "' of ", kind_of(a), " and ", kind_of(b));
  require(*y != 0 || (name != "/" && name != "//" && name != "%"), "division by zero");
  double result = 0;
  switch (name[0]) {
    case '+':
      result = *x + *y;
      break;
    case '-':
      result = *x - *y;
      break;
    case '*':
      result = *x * *y;
      break;
    case '/':
      result = name == "/" ? *x / *y : std::floor(*x / *y);
      break;
    default:
      result = *x - *y * std::floor(*x / *y);
  }
  bool is_integer = !a.get<double>() && !b.get<double>() && name != "/";
  if (!is_integer) return {result};
  require(std::abs(result) < 9e15, "the integer ", result, " is too large");
  return {static_cast<int64_t>(result)};
}

void count_entry(Value& whole, const Value& entry) {
  whole.depth = std::max(whole.depth, entry.depth + 1);
  whole.size += 1 + entry.size;
  require(whole.depth <= deepest, "lists are nested more than ", deepest, " levels deep");
  require(whole.size <= most_entries, "a list has more than ", most_entries,
          " entries, with those of its entries");
}

void write_json(std::string& out, const Value& value, int indent, int depth) {
  require(depth <= deepest, "tojson: nested too deep");
  require(out.size() <= longest, "tojson: longer than ", longest, " bytes");
  auto line = [&](int at) {
    if (indent < 0) return;
    out += '\n';
    out.append(static_cast<size_t>(at * indent), ' ');
  };
  const Value::List* list = value.list();
  const Value::Dict* dict = value.dict();
  if (!list && !dict) {
    require(!value.get<Value::Undefined>(), "tojson of '",
            value.get<Value::Undefined>() ? value.get<Value::Undefined>()->name : "",
            "', which is not defined");
    if (const std::string* text = value.get<std::string>())
      out += nlohmann::json(*text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    else if (const bool* boolean = value.get<bool>())
      out += *boolean ? "true" : "false";
    else
      out += value.get<Value::None>() ? "null" : to_text(value);
    return;
  }
  size_t size = list ? list->size() : dict->size();
  out += list ? '[' : '{';
  for (size_t i = 0; i < size; ++i) {
    if (i > 0) out += indent < 0 ? ", " : ",";
    line(depth + 1);
    if (dict) {
      write_json(out, {(*dict)[i].first}, indent, depth + 1);
      out += ": ";
    }
    write_json(out, list ? (*list)[i] : (*dict)[i].second, indent, depth + 1);
  }
  if (size > 0) line(depth);
  out += list ? ']' : '}';
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

const Value* Value::find(std::string_view key) const {
  if (const Dict* members = dict())
    for (const auto& [name, value] : *members)
      if (name == key) return &value;
  return nullptr;
}

Value make_list(Value::List list) {
  Value whole;
  for (const Value& entry : list) count_entry(whole, entry);
  whole.data = std::make_shared<Value::List>(std::move(list));
  return whole;
}

Value make_dict(Value::Dict dict) {
  Value whole;
  for (const auto& [name, member] : dict) count_entry(whole, member);
  whole.data = std::make_shared<Value::Dict>(std::move(dict));
  return whole;
}

std::string kind_of(const Value& value) {
  if (auto missing = value.get<Value::Undefined>())
    return "'" + missing->name + "', which is not defined";
  constexpr const char* names[] = {"",       "none",     "a boolean", "an integer",
                                   "a real", "a string", "a list",    "a dictionary"};
  return names[value.data.index()];
}

bool is_true(const Value& value) {
  if (const bool* boolean = value.get<bool>()) return *boolean;
  if (const std::string* text = value.get<std::string>()) return !text->empty();
  if (const Value::List* list = value.list()) return !list->empty();
  if (const Value::Dict* dict = value.dict()) return !dict->empty();
  auto number = number_of(value);
  return number && *number != 0;
}

bool is_equal(const Value& a, const Value& b) {
  auto x = number_of(a), y = number_of(b);
  if (x && y) return *x == *y;
  if (a.data.index() != b.data.index()) return false;
  if (const std::string* text = a.get<std::string>()) return *text == *b.get<std::string>();
  if (const Value::List* list = a.list())
    return std::equal(list->begin(), list->end(), b.list()->begin(), b.list()->end(), is_equal);
  return a.get<Value::None>() || (a.dict() && a.dict() == b.dict());
}

std::string to_text(const Value& value) {
  if (const std::string* text = value.get<std::string>()) return *text;
  if (value.get<Value::Undefined>()) return "";
  if (value.get<Value::None>()) return "None";
  if (const bool* boolean = value.get<bool>()) return *boolean ? "True" : "False";
  if (const int64_t* integer = value.get<int64_t>()) return std::to_string(*integer);
  if (const double* real = value.get<double>()) return nlohmann::json(*real).dump();
  fail(kind_of(value), " is written as text: use join or tojson");
}

std::string to_json(const Value& value, int indent) {
  std::string out;
  write_json(out, value, indent, 0);
  return out;
}

Value apply_operator(const std::string& name, const Value& a, const Value& b) {
  if (name == "==") return {is_equal(a, b)};
  if (name == "!=") return {!is_equal(a, b)};
  if (name == "in") return {contains(b, a)};
  if (name == "~") return apply_operator("+", {to_text(a)}, {to_text(b)});
  const std::string *s = a.get<std::string>(), *t = b.get<std::string>();
  if (name == "+" && s && t) {
    check_length(s->size() + t->size());
    return {*s + *t};
  }
  if (name == "+" && a.list() && b.list()) {
    Value::List joined = *a.list();
    joined.insert(joined.end(), b.list()->begin(), b.list()->end());
    return make_list(std::move(joined));
  }
  if (name[0] != '<' && name[0] != '>') return arithmetic(name, a, b);
  auto x = number_of(a), y = number_of(b);
  require((x && y) || (s && t), "'", name, "' of ", kind_of(a), " and ", kind_of(b));
  int order = s && t ? s->compare(*t) : *x < *y ? -1 : *x > *y;
  bool holds = name == "<"    ? order < 0
               : name == ">"  ? order > 0
               : name == "<=" ? order <= 0
                              : order >= 0;
  return {holds};
}

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments) {
  return look_up(filters(), "filter", name)(value, arguments);
}

bool apply_test(const std::string& name, const Value& value, const Arguments& arguments) {
  return look_up(tests(), "test", name)(value, arguments);
}

Value call_method(const std::string& name, const Value& value, const Arguments& arguments) {
  if (const std::string* text = value.get<std::string>())
    return look_up(string_methods(), "method", name)(*text, arguments);
  const Value::Dict* dict = value.dict();
  require(dict != nullptr, "the method '", name, "' of ", kind_of(value));
  if (name == "items") return items(value);
  if (name == "get") {
    const Value* member = value.find(text_argument(arguments, 0, "key"));
    const Value* fallback = argument(arguments, 1, "default");
    return member ? *member : fallback ? *fallback : Value{Value::None()};
  }
  require(name == "keys" || name == "values", "the method '", name,
          "' of a dictionary is not supported; supported are get, items, keys, values");
  Value::List list;
  for (const auto& [key, member] : *dict) list.push_back(name == "keys" ? Value{key} : member);
  return make_list(std::move(list));
}

}  // namespace redco::text::jinja
