// The methods of strings, dictionaries and lists in Jinja.
#include "../utf8.h"
#include "jinja_text.h"
#include "jinja_values.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <set>

namespace redco::text::jinja {

namespace {

// Like text.find(part, begin), but in linear time.
size_t position_of(std::string_view text, std::string_view part, size_t begin = 0) {
  if (begin > text.size()) return text.npos;
  const void* found = memmem(text.data() + begin, text.size() - begin, part.data(), part.size());
  return found ? size_t(static_cast<const char*>(found) - text.data()) : text.npos;
}

template <bool left, bool right>
Value strip(const std::string& text, const Arguments& arguments) {
  const Value* given = argument(arguments, 0, "chars");
  std::string_view rest = text;
  if (given == nullptr || given->get<Value::None>()) {
    if (left) rest.remove_prefix(leading_whitespace(rest));
    if (right) rest.remove_suffix(trailing_whitespace(rest));
    return {std::string(rest)};
  }
  std::vector<std::string> given_characters = characters(text_of(*given));
  std::set<std::string, std::less<>> set(given_characters.begin(), given_characters.end());
  while (left && !rest.empty()) {
    size_t size = code_point_at(rest, 0).size;
    if (!set.contains(rest.substr(0, size))) break;
    rest.remove_prefix(size);
  }
  while (right && !rest.empty()) {
    size_t begin = character_before(rest, rest.size());
    if (!set.contains(rest.substr(begin))) break;
    rest.remove_suffix(rest.size() - begin);
  }
  return {std::string(rest)};
}

Value replace(const std::string& text, const Arguments& arguments) {
  std::string from = text_argument(arguments, 0, "old"), to = text_argument(arguments, 1, "new");
  auto given = integer_argument(arguments, 2, "count");
  int64_t left = given && *given >= 0 ? *given : INT64_MAX;
  std::string result;
  if (from.empty()) {
    for (const std::string& character : characters(text)) {
      result += (left-- > 0 ? to : "") + character;
      check_length(result.size());
    }
    return {result + (left > 0 ? to : "")};
  }
  size_t done = 0;
  for (size_t at = 0; left > 0 && (at = position_of(text, from, done)) != text.npos; --left) {
    result.append(text, done, at - done).append(to);
    done = at + from.size();
    check_length(result.size());
  }
  return {result.append(text, done)};
}

// Splits at blanks or separators, into at most `most` + 1 parts, from either end.
class Split {
 public:
  Split(const std::string& text, const Arguments& arguments)
      : text_(text), separator_(argument(arguments, 0, "sep")) {
    if (separator_ && separator_->get<Value::None>()) separator_ = nullptr;
    auto most = integer_argument(arguments, 1, "maxsplit");
    left_ = most && *most >= 0 ? *most : INT64_MAX;
  }

  Value from_left() {
    if (separator_ == nullptr) return blanks_from_left();
    const std::string& by = text_of(*separator_);
    require(!by.empty(), "split: the separator is empty");
    size_t done = 0;
    for (size_t at; left_ > 0 && (at = position_of(text_, by, done)) != text_.npos; --left_) {
      add(text_.substr(done, at - done));
      done = at + by.size();
    }
    add(text_.substr(done));
    return make_list(std::move(parts_));
  }

  Value from_right() {
    std::string rest = text_;
    if (separator_ == nullptr) {
      rest.resize(rest.size() - trailing_whitespace(rest));
      for (; left_ > 0 && !rest.empty(); --left_) {
        size_t begin = rest.size();
        while (begin > 0 && !is_blank_before(rest, begin)) begin = character_before(rest, begin);
        add(rest.substr(begin));
        rest.resize(begin);
        rest.resize(rest.size() - trailing_whitespace(rest));
      }
      if (!rest.empty()) add(rest);
    } else {
      const std::string& by = text_of(*separator_);
      require(!by.empty(), "rsplit: the separator is empty");
      for (size_t at; left_ > 0 && (at = rest.rfind(by)) != rest.npos; --left_) {
        add(rest.substr(at + by.size()));
        rest.resize(at);
      }
      add(rest);
    }
    std::reverse(parts_.begin(), parts_.end());
    return make_list(std::move(parts_));
  }

 private:
  static bool is_blank_before(const std::string& text, size_t end) {
    return is_whitespace(code_point_at(text, character_before(text, end)).value);
  }

  Value blanks_from_left() {
    std::string_view rest = text_;
    rest.remove_prefix(leading_whitespace(rest));
    for (; left_ > 0 && !rest.empty(); --left_) {
      size_t size = 0;
      while (size < rest.size() && !is_whitespace(code_point_at(rest, size).value))
        size += code_point_at(rest, size).size;
      add(std::string(rest.substr(0, size)));
      rest.remove_prefix(size);
      rest.remove_prefix(leading_whitespace(rest));
    }
    if (!rest.empty()) add(std::string(rest));
    return make_list(std::move(parts_));
  }

  void add(std::string part) {
    require(parts_.size() < size_t(most_entries), "split: more than ", most_entries, " parts");
    parts_.push_back({std::move(part)});
  }

  const std::string& text_;
  const Value* separator_;
  int64_t left_;
  Value::List parts_;
};

template <bool from_right>
Value partition(const std::string& text, const Arguments& arguments) {
  std::string by = text_argument(arguments, 0, "sep");
  require(!by.empty(), "partition: the separator is empty");
  size_t at = from_right ? text.rfind(by) : position_of(text, by);
  Value::List parts;
  if (at != text.npos)
    parts = {{text.substr(0, at)}, {by}, {text.substr(at + by.size())}};
  else if (from_right)
    parts = {{std::string()}, {std::string()}, {text}};
  else
    parts = {{text}, {std::string()}, {std::string()}};
  return make_list(std::move(parts), Value::Kind::tuple);
}

// startswith and endswith, for a text or a tuple of texts.
template <bool at_start>
Value has_end(const std::string& text, const Arguments& arguments) {
  const Value* given = argument(arguments, 0, "prefix");
  require(given != nullptr, "the text to look for is missing");
  auto holds = [&](const Value& part) {
    return at_start ? text.starts_with(text_of(part)) : text.ends_with(text_of(part));
  };
  if (const Value::List* parts = given->list())
    return {std::any_of(parts->begin(), parts->end(), holds)};
  return {holds(*given)};
}

// The position of a part in characters; -1 if not found.
template <bool from_right>
int64_t find(const std::string& text, const Arguments& arguments) {
  std::string part = text_argument(arguments, 0, "sub");
  size_t begin = 0;
  if (auto first = integer_argument(arguments, 1, "start")) {
    require(!from_right && *first >= 0, "find: only a start from 0 on is supported");
    for (int64_t i = 0; i < *first && begin < text.size(); ++i)
      begin += code_point_at(text, begin).size;
  }
  size_t at = from_right ? text.rfind(part) : position_of(text, part, begin);
  if (at == text.npos) return -1;
  return int64_t(count_characters(std::string_view(text).substr(0, at)));
}

template <bool from_right>
Value index(const std::string& text, const Arguments& arguments) {
  int64_t at = find<from_right>(text, arguments);
  require(at >= 0, "index: '", text_argument(arguments, 0, "sub"), "' is not in the text");
  return {at};
}

int64_t count(const std::string& text, const Arguments& arguments) {
  std::string part = text_argument(arguments, 0, "sub");
  if (part.empty()) return int64_t(count_characters(text)) + 1;
  int64_t n = 0;
  for (size_t at = 0; (at = position_of(text, part, at)) != text.npos; at += part.size()) ++n;
  return n;
}

// Whether the text is not empty and all its characters are of these categories.
template <bool (*holds)(char32_t)>
Value all_are(const std::string& text, const Arguments&) {
  for (size_t i = 0; i < text.size();) {
    CodePoint c = code_point_at(text, i);
    if (!holds(c.value)) return {false};
    i += c.size;
  }
  return {!text.empty()};
}

bool is_letter(char32_t c) {
  auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
bool is_decimal(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_ND;
}

bool is_letter_or_decimal(char32_t c) { return is_letter(c) || is_decimal(c); }

template <bool upper_case>
Value is_in_case(const std::string& text, const Arguments&) {
  return {text == (upper_case ? upper(text) : lower(text)) && upper(text) != lower(text)};
}

// ljust, rjust and center: the share of padding before the text, in halves.
template <int halves_before>
Value padded(const std::string& text, const Arguments& arguments) {
  auto width = integer_argument(arguments, 0, "width");
  require(width.has_value(), "the width is missing");
  const Value* given = argument(arguments, 1, "fillchar");
  std::string fill = given ? text_of(*given) : " ";
  require(count_characters(fill) == 1, "the character to fill with is '", fill, "'");
  auto size = int64_t(count_characters(text));
  int64_t n = std::max<int64_t>(*width - size, 0);
  check_length(size_t(n) * fill.size());
  // As in Python: the odd character goes before the text if the width is odd too.
  int64_t n_before = halves_before == 1 ? n / 2 + (n & *width & 1) : n * halves_before / 2;
  std::string before, after;
  for (int64_t i = 0; i < n; ++i) (i < n_before ? before : after) += fill;
  return {before + text + after};
}

Value zfill(const std::string& text, const Arguments& arguments) {
  auto width = integer_argument(arguments, 0, "width");
  require(width.has_value(), "the width is missing");
  int64_t n = std::max<int64_t>(*width - int64_t(count_characters(text)), 0);
  check_length(size_t(n));
  size_t sign = text.starts_with('-') || text.starts_with('+');
  return {text.substr(0, sign) + std::string(size_t(n), '0') + text.substr(sign)};
}

Value splitlines(const std::string& text, const Arguments& arguments) {
  Value::List lines;
  for (std::string& line : lines_of(text, flag_argument(arguments, 0, "keepends")))
    lines.push_back({std::move(line)});
  return make_list(std::move(lines));
}

Value join_texts(const std::string& text, const Arguments& arguments) {
  require(arguments.positional.size() == 1, "join takes one list");
  std::string result;
  bool is_first = true;
  for (const Value& item : items_of(arguments.positional[0], "join")) {
    if (!is_first) result += text;
    is_first = false;
    result += text_of(item);
    check_length(result.size());
  }
  return {result};
}

using StringMethod = Value (*)(const std::string&, const Arguments&);

template <std::string (*change)(std::string_view)>
Value changed(const std::string& text, const Arguments&) {
  return {change(text)};
}

const std::map<std::string, StringMethod>& string_methods() {
  static const std::map<std::string, StringMethod> table = {
      {"strip", strip<true, true>},
      {"lstrip", strip<true, false>},
      {"rstrip", strip<false, true>},
      {"upper", changed<upper>},
      {"lower", changed<lower>},
      {"casefold", changed<lower>},
      {"capitalize", changed<capitalized>},
      {"title", changed<title_of_letters>},
      {"replace", replace},
      {"split", [](const std::string& s, const Arguments& a) { return Split(s, a).from_left(); }},
      {"rsplit", [](const std::string& s, const Arguments& a) { return Split(s, a).from_right(); }},
      {"splitlines", splitlines},
      {"partition", partition<false>},
      {"rpartition", partition<true>},
      {"startswith", has_end<true>},
      {"endswith", has_end<false>},
      {"removeprefix",
       [](const std::string& s, const Arguments& a) {
         std::string part = text_argument(a, 0, "prefix");
         return Value{s.starts_with(part) ? s.substr(part.size()) : s};
       }},
      {"removesuffix",
       [](const std::string& s, const Arguments& a) {
         std::string part = text_argument(a, 0, "suffix");
         return Value{s.ends_with(part) ? s.substr(0, s.size() - part.size()) : s};
       }},
      {"find", [](const std::string& s, const Arguments& a) { return Value{find<false>(s, a)}; }},
      {"rfind", [](const std::string& s, const Arguments& a) { return Value{find<true>(s, a)}; }},
      {"index", index<false>},
      {"rindex", index<true>},
      {"count", [](const std::string& s, const Arguments& a) { return Value{count(s, a)}; }},
      {"join", join_texts},
      {"format",
       [](const std::string& s, const Arguments& a) { return Value{format_fields(s, a)}; }},
      {"isdigit", all_are<is_decimal>},
      {"isdecimal", all_are<is_decimal>},
      {"isnumeric", all_are<is_decimal>},
      {"isalpha", all_are<is_letter>},
      {"isalnum", all_are<is_letter_or_decimal>},
      {"isspace", all_are<is_whitespace>},
      {"isupper", is_in_case<true>},
      {"islower", is_in_case<false>},
      {"ljust", padded<0>},
      {"center", padded<1>},
      {"rjust", padded<2>},
      {"zfill", zfill},
  };
  return table;
}

using Method = Value (*)(const Value&, const Arguments&);

Value pairs_of(const Value& value, const Arguments&) {
  Value::List pairs;
  for (const auto& [key, member] : *value.dict())
    pairs.push_back(make_list({key, member}, Value::Kind::tuple));
  return make_list(std::move(pairs));
}

const std::map<std::string, Method>& dict_methods() {
  static const std::map<std::string, Method> table = {
      {"items", pairs_of},
      {"keys", [](const Value& v, const Arguments&) { return make_list(items_of(v, "keys")); }},
      {"values",
       [](const Value& v, const Arguments&) {
         Value::List list;
         for (const auto& [key, member] : *v.dict()) list.push_back(member);
         return make_list(std::move(list));
       }},
      {"get",
       [](const Value& v, const Arguments& a) {
         const Value *key = argument(a, 0, "key"), *fallback = argument(a, 1, "default");
         require(key != nullptr, "get: the key is missing");
         const Value* found = v.find(*key);
         return found ? *found : fallback ? *fallback : Value{Value::None()};
       }},
      {"copy", [](const Value& v, const Arguments&) { return make_dict(*v.dict()); }},
  };
  return table;
}

const std::map<std::string, Method>& list_methods() {
  static const std::map<std::string, Method> table = {
      {"count",
       [](const Value& v, const Arguments& a) {
         require(a.positional.size() == 1, "count takes one value");
         return Value{
             int64_t(std::count_if(v.list()->begin(), v.list()->end(), [&](const Value& entry) {
               return is_equal(entry, a.positional[0]);
             }))};
       }},
      {"index",
       [](const Value& v, const Arguments& a) {
         require(a.positional.size() == 1, "index takes one value");
         for (size_t i = 0; i < v.list()->size(); ++i)
           if (is_equal((*v.list())[i], a.positional[0])) return Value{int64_t(i)};
         fail("index: the value is not in the list");
       }},
      {"copy", [](const Value& v, const Arguments&) { return make_list(*v.list()); }},
  };
  return table;
}

// Python's methods that templates cannot call or that are not supported here.
const std::set<std::string> other_methods[] = {
    {"encode", "expandtabs", "format_map", "isascii", "isidentifier", "isprintable", "istitle",
     "maketrans", "swapcase", "translate"},
    {"clear", "fromkeys", "pop", "popitem", "setdefault", "update"},
    {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"}};

// The result of a method of markup: texts are markup too.
Value marked(const Value& value) {
  if (auto text = value.get<std::string>()) return as_markup(*text);
  if (value.list() == nullptr) return value;
  Value::List list;
  for (const Value& entry : *value.list()) list.push_back(marked(entry));
  return make_list(std::move(list), value.kind);
}

// The arguments for a method of markup: texts that it adds are escaped.
Arguments with_escapes(const std::string& method, Arguments given) {
  auto escape = [](Value& value) { value = as_markup(escaped(value)); };
  if (method == "join" && given.positional.size() == 1) {
    Value::List list = items_of(given.positional[0], "join");
    std::for_each(list.begin(), list.end(), escape);
    given.positional[0] = make_list(std::move(list));
  } else if (method == "format") {
    std::for_each(given.positional.begin(), given.positional.end(), escape);
    for (auto& [name, value] : given.named) escape(value);
  } else if (method == "replace" || method == "ljust" || method == "rjust" || method == "center") {
    if (given.positional.size() > 1) escape(given.positional[1]);
  }
  return given;
}

template <class T, class Bind>
std::optional<Value::Function> bound(const std::map<std::string, T>& table,
                                     const std::set<std::string>& other, const char* of,
                                     const std::string& name, Bind bind) {
  auto found = table.find(name);
  if (found != table.end()) return bind(found->second);
  if (!other.contains(name)) return std::nullopt;
  return [&table, of, name](const Arguments&) -> Value {
    look_up(table, (std::string("method of ") + of).c_str(), name);
    return {};
  };
}

std::optional<Value::Function> call_of(const Value& value, const std::string& name) {
  auto with_value = [&](Method method) -> Value::Function {
    return [value, method](const Arguments& given) { return method(value, given); };
  };
  if (const std::string* text = value.get<std::string>())
    return bound(string_methods(), other_methods[0], "a string", name,
                 [&](StringMethod method) -> Value::Function {
                   if (is_markup(value))
                     return [text = *text, name, method](const Arguments& given) {
                       return marked(method(text, with_escapes(name, given)));
                     };
                   return [text = *text, method](const Arguments& given) {
                     return method(text, given);
                   };
                 });
  if (value.dict())
    return bound(dict_methods(), other_methods[1], "a dictionary", name, with_value);
  if (value.list()) return bound(list_methods(), other_methods[2], "a list", name, with_value);
  return std::nullopt;
}

}  // namespace

std::optional<Value> find_method(const Value& value, const std::string& name) {
  std::optional<Value::Function> call = call_of(value, name);
  if (!call) return std::nullopt;
  return make_function(BoundMethod{value, name, std::move(*call)});
}

}  // namespace redco::text::jinja
