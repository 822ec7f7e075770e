// The filters of Jinja.

#include "../utf8.h"
#include "jinja_text.h"
#include "jinja_values.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace redco::text::jinja {

namespace {

using Filter = Value (*)(const Value&, const Arguments&);

Value generator(Value::List list) { return make_list(std::move(list), Value::Kind::generator); }

// The value as text; markup stays markup.
Value soft_text(const Value& value) { return text_like(to_text(value), value); }

// Calls a string method on a text.
Value by_method(const char* name, const Value& text, const Arguments& arguments) {
  Value method = *find_method(text, name);
  return (*method.function())(arguments);
}

Value trim(const Value& value, const Arguments& arguments) {
  return by_method("strip", soft_text(value), arguments);
}

Value replace(const Value& value, const Arguments& arguments) {
  Arguments texts = arguments;
  for (size_t i = 0; i < std::min<size_t>(texts.positional.size(), 2); ++i)
    texts.positional[i] = {to_text(texts.positional[i])};
  return by_method("replace", {to_text(value)}, texts);
}

template <std::string (*change)(std::string_view)>
Value changed(const Value& value, const Arguments&) {
  return text_like(change(to_text(value)), value);
}

Value length_of(const Value& value, const Arguments&) {
  if (value.get<Value::Undefined>()) return {int64_t{0}};
  require(value.kind != Value::Kind::generator, "length of ", kind_of(value),
          ": add '| list' before it");
  if (const Value::List* list = value.list()) return {int64_t(list->size())};
  if (const Value::Dict* dict = value.dict()) return {int64_t(dict->size())};
  return {int64_t(count_characters(text_of(value)))};
}

// Selects the key of each item for a filter: the given attribute, or the item itself.
class Selector {
 public:
  Selector(const Arguments& arguments, size_t index, bool ignores_case)
      : ignores_case_(ignores_case) {
    const Value* given = argument(arguments, index, "attribute");
    if (given && !given->get<Value::None>()) path_ = to_text(*given);
  }

  Value operator()(const Value& item) const {
    if (!path_) return in_case(item);
    if (path_->find(',') == path_->npos) return in_case(at_path(item, *path_));
    Value::List values;
    for (size_t begin = 0; begin <= path_->size();) {
      size_t end = std::min(path_->find(',', begin), path_->size());
      values.push_back(in_case(at_path(item, path_->substr(begin, end - begin))));
      begin = end + 1;
    }
    return make_list(std::move(values));
  }

 private:
  Value in_case(Value value) const {
    if (ignores_case_ && value.get<std::string>()) return {lower(text_of(value))};
    return value;
  }

  std::optional<std::string> path_;
  bool ignores_case_;
};

Value join(const Value& value, const Arguments& arguments) {
  const Value* between = argument(arguments, 0, "d");
  Selector selected(arguments, 1, false);
  std::string text;
  bool is_first = true;
  for (const Value& item : items_of(value, "join")) {
    if (!is_first && between) text += to_text(*between);
    is_first = false;
    text += to_text(selected(item));
    check_length(text.size());
  }
  return {text};
}

Value items(const Value& value, const Arguments& arguments) {
  if (value.get<Value::Undefined>()) return generator({});
  require(value.dict() && value.kind == Value::Kind::plain, "items: expected a dictionary, got ",
          kind_of(value));
  Value pairs = (*find_method(value, "items")->function())(arguments);
  return generator(*pairs.list());
}

template <bool is_first>
Value end_of(const Value& value, const Arguments&) {
  Value::List list = items_of(value, is_first ? "first" : "last");
  if (list.empty()) return {Value::Undefined{is_first ? "first" : "last"}};
  if (is_first) return list.front();
  return is_markup(value) ? text_like(text_of(list.back()), value) : list.back();
}

Value list(const Value& value, const Arguments&) { return make_list(items_of(value, "list")); }

Value reversed(const Value& value, const Arguments&) {
  Value::List list = items_of(value, "reverse");
  std::reverse(list.begin(), list.end());
  if (!value.get<std::string>()) return generator(std::move(list));
  std::string text;
  for (const Value& letter : list) text += text_of(letter);
  return text_like(std::move(text), value);
}

Value default_of(const Value& value, const Arguments& arguments) {
  const Value* fallback = argument(arguments, 0, "default_value");
  bool is_missing =
      value.get<Value::Undefined>() || (flag_argument(arguments, 1, "boolean") && !is_true(value));
  return !is_missing ? value : fallback ? *fallback : Value{std::string()};
}

Value tojson(const Value& value, const Arguments& arguments) {
  JsonStyle style;
  style.ensure_ascii = flag_argument(arguments, 0, "ensure_ascii");
  if (const Value* indent = argument(arguments, 1, "indent");
      indent && !indent->get<Value::None>()) {
    auto n = integer_of(*indent);
    require(n && *n >= 0 && *n <= 16, "tojson: indent is ", n ? to_text(*indent) : kind_of(*indent),
            ", expected 0 to 16");
    style.indent = int(*n);
    style.between_items = ",";
  }
  if (const Value* given = argument(arguments, 2, "separators"); given && given->list()) {
    require(given->list()->size() == 2, "tojson: separators are two strings");
    style.between_items = text_of((*given->list())[0]);
    style.after_key = text_of((*given->list())[1]);
  }
  style.sort_keys = flag_argument(arguments, 3, "sort_keys");
  return {to_json(value, style)};
}

Value indented(const Value& value, const Arguments& arguments) {
  const Value* width = argument(arguments, 0, "width");
  int64_t n = width && !width->get<std::string>() ? integer_of(*width).value_or(4) : 4;
  require(n >= 0 && n <= 1000, "indent: the width is ", n);
  std::string by =
      width && width->get<std::string>() ? text_of(*width) : std::string(size_t(n), ' ');
  bool first = flag_argument(arguments, 1, "first"), blank = flag_argument(arguments, 2, "blank");
  std::string text = first ? by : "";
  bool is_first = true;
  for (const std::string& line : lines_of(text_of(value) + "\n")) {
    if (!is_first) text += "\n" + (blank || !line.empty() ? by : "");
    is_first = false;
    text += line;
    check_length(text.size());
  }
  return text_like(std::move(text), value);
}

// Parses a whole text as a number; none if it is not a number.
template <class T>
std::optional<T> parsed(std::string text) {
  std::erase(text, '_');
  size_t begin = text.find_first_not_of(" \t\n\r\f\v");
  if (begin == text.npos) return std::nullopt;
  text = text.substr(begin, text.find_last_not_of(" \t\n\r\f\v") + 1 - begin);
  if (text.starts_with('+')) text.erase(0, 1);
  T value{};
  auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

Value to_integer(const Value& value, const Arguments& arguments) {
  const Value* fallback = argument(arguments, 0, "default");
  require(!argument(arguments, 1, "base"), "int: another base is not supported");
  require(!value.get<Value::Undefined>(), "int of ", kind_of(value));
  if (auto integer = integer_of(value)) return {*integer};
  const std::string* text = value.get<std::string>();
  if (text)
    if (auto integer = parsed<int64_t>(*text)) return {*integer};
  auto real = text ? parsed<double>(*text) : number_of(value);
  if (real && std::abs(*real) < 0x1p63) return {int64_t(*real)};
  require(!real || std::isnan(*real) || (text && std::isinf(*real)), "int: the integer ",
          to_text(value), " is too large");
  return fallback ? *fallback : Value{int64_t{0}};
}

Value to_real(const Value& value, const Arguments& arguments) {
  const Value* fallback = argument(arguments, 0, "default");
  const std::string* text = value.get<std::string>();
  require(!value.get<Value::Undefined>(), "float of ", kind_of(value));
  if (auto real = text ? parsed<double>(*text) : number_of(value)) return {*real};
  return fallback ? *fallback : Value{0.0};
}

Value rounded(const Value& value, const Arguments& arguments) {
  int64_t precision = integer_argument(arguments, 0, "precision").value_or(0);
  const Value* given = argument(arguments, 1, "method");
  std::string method = given ? text_of(*given) : "common";
  auto number = number_of(value);
  require(number && std::abs(precision) < 100, "round of ", kind_of(value));
  if (method == "common" && integer_of(value) && precision >= 0) return {*integer_of(value)};
  if (method == "common") {
    // As in Python: the decimal number with this many digits that is nearest to the exact value.
    if (precision < 0) {
      double scale = std::pow(10.0, double(-precision));
      return {std::nearbyint(*number / scale) * scale};
    }
    Value text = formatted({"%." + std::to_string(precision) + "f"}, {{*number}});
    return {std::stod(text_of(text))};
  }
  require(method == "ceil" || method == "floor", "round: the method '", method,
          "' is not supported; supported are common, ceil, floor");
  double scale = std::pow(10.0, double(precision));
  return {(method == "ceil" ? std::ceil(*number * scale) : std::floor(*number * scale)) / scale};
}

Value absolute(const Value& value, const Arguments&) {
  if (auto integer = integer_of(value)) return {std::abs(*integer)};
  require(number_of(value).has_value(), "abs of ", kind_of(value));
  return {std::abs(*number_of(value))};
}

Value sum(const Value& value, const Arguments& arguments) {
  Selector selected(arguments, 0, false);
  const Value* start = argument(arguments, 1, "start");
  Value total = start ? *start : Value{int64_t{0}};
  for (const Value& item : items_of(value, "sum"))
    total = apply_operator("+", total, selected(item));
  return total;
}

// Sorts items by their keys, stably.
Value::List sorted(Value::List items, const Selector& selected, bool reverse) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : items) keyed.emplace_back(selected(item), item);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? compare(b.first, a.first) < 0 : compare(a.first, b.first) < 0;
  });
  for (size_t i = 0; i < items.size(); ++i) items[i] = std::move(keyed[i].second);
  return items;
}

Value sort(const Value& value, const Arguments& arguments) {
  Selector selected(arguments, 2, !flag_argument(arguments, 1, "case_sensitive"));
  return make_list(
      sorted(items_of(value, "sort"), selected, flag_argument(arguments, 0, "reverse")));
}

Value dictsort(const Value& value, const Arguments& arguments) {
  const Value* by = argument(arguments, 1, "by");
  require(!by || text_of(*by) == "key" || text_of(*by) == "value", "dictsort: by is '",
          by ? text_of(*by) : "", "', expected key or value");
  Arguments chosen{{}, {{"attribute", {int64_t{by && text_of(*by) == "value"}}}}};
  Selector selected(chosen, 1, !flag_argument(arguments, 0, "case_sensitive"));
  Value pairs = items(value, {});
  return make_list(sorted(*pairs.list(), selected, flag_argument(arguments, 2, "reverse")));
}

template <bool greatest>
Value extreme(const Value& value, const Arguments& arguments) {
  Selector selected(arguments, 1, !flag_argument(arguments, 0, "case_sensitive"));
  Value::List list = items_of(value, greatest ? "max" : "min");
  if (list.empty()) return {Value::Undefined{greatest ? "max" : "min"}};
  size_t best = 0;
  for (size_t i = 1; i < list.size(); ++i) {
    int order = compare(selected(list[i]), selected(list[best]));
    if (greatest ? order > 0 : order < 0) best = i;
  }
  return list[best];
}

Value unique(const Value& value, const Arguments& arguments) {
  Selector selected(arguments, 1, !flag_argument(arguments, 0, "case_sensitive"));
  Value::List seen, kept;
  for (const Value& item : items_of(value, "unique")) {
    Value key = selected(item);
    require_hash(key, "unique");
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& v) { return is_equal(v, key); }))
      continue;
    require(seen.size() < 10'000, "unique: more than 10000 values");
    seen.push_back(std::move(key));
    kept.push_back(item);
  }
  return generator(std::move(kept));
}

Value map(const Value& value, const Arguments& arguments) {
  Value::List result;
  const Value* path = argument(arguments, arguments.positional.size(), "attribute");
  const Value* fallback = argument(arguments, arguments.positional.size(), "default");
  Arguments rest = arguments;
  std::string name;
  if (arguments.positional.empty()) {
    require(path != nullptr, "map: expected a filter or attribute = ...");
  } else {
    name = text_of(arguments.positional[0]);
    rest.positional.erase(rest.positional.begin());
  }
  // As in Jinja none, 0 and the like have no items here.
  if (!is_true(value)) return generator({});
  for (const Value& item : items_of(value, "map")) {
    result.push_back(name.empty() ? at_path(item, to_text(*path), fallback)
                                  : apply_filter(name, item, rest));
  }
  return generator(std::move(result));
}

// select, reject, selectattr, rejectattr: the items for which the test holds, or does not.
template <bool of_attribute, bool wanted>
Value select(const Value& value, const Arguments& arguments) {
  Arguments rest = arguments;
  auto take = [&] {
    Value first = rest.positional[0];
    rest.positional.erase(rest.positional.begin());
    return first;
  };
  require(!of_attribute || !rest.positional.empty(), "selectattr: the attribute is missing");
  std::string path = of_attribute ? to_text(take()) : "";
  std::string test = rest.positional.empty() ? "" : text_of(take());
  Value::List kept;
  // As in Jinja none, 0 and the like have no items here.
  if (!is_true(value)) return generator({});
  for (const Value& item : items_of(value, "select")) {
    Value looked_at = of_attribute ? at_path(item, path) : item;
    bool holds = test.empty() ? is_true(looked_at) : apply_test(test, looked_at, rest);
    if (holds == wanted) kept.push_back(item);
  }
  return generator(std::move(kept));
}

Value truncated(const Value& value, const Arguments& arguments) {
  int64_t length = integer_argument(arguments, 0, "length").value_or(255);
  int64_t leeway = integer_argument(arguments, 3, "leeway").value_or(5);
  if (integer_of(length_of(value, {})).value_or(0) <= length + leeway) return value;
  std::string text = text_of(value);
  auto size = [](const std::string& s) { return int64_t(count_characters(s)); };
  auto first = [](const std::string& s, int64_t n) {
    return text_of(slice({s}, std::nullopt, n, std::nullopt));
  };
  const Value* given = argument(arguments, 2, "end");
  Value last = given ? *given : Value{std::string("...")};
  const std::string& end = text_of(last);
  require(length >= size(end) && leeway >= 0, "truncate: the length is ", length);
  text = first(text, length - size(end));
  if (!flag_argument(arguments, 1, "killwords")) text = text.substr(0, text.rfind(' '));
  return apply_operator("+", text_like(std::move(text), value), last);
}

Value centered(const Value& value, const Arguments& arguments) {
  const Value* width = argument(arguments, 0, "width");
  return by_method("center", soft_text(value), {{width ? *width : Value{int64_t{80}}}, {}});
}

const std::map<std::string, Filter>& filters() {
  static const std::map<std::string, Filter> table = {
      {"abs", absolute},
      {"attr",
       [](const Value& v, const Arguments& a) {
         return v.dict() && !find_method(v, text_argument(a, 0, "name"))
                    ? Value{Value::Undefined{text_argument(a, 0, "name")}}
                    : attribute(v, text_argument(a, 0, "name"));
       }},
      {"capitalize", changed<capitalized>},
      {"center", centered},
      {"count", length_of},
      {"d", default_of},
      {"default", default_of},
      {"e", [](const Value& v, const Arguments&) { return as_markup(escaped(v)); }},
      {"escape", [](const Value& v, const Arguments&) { return as_markup(escaped(v)); }},
      {"dictsort", dictsort},
      {"first", end_of<true>},
      {"float", to_real},
      {"format",
       [](const Value& v, const Arguments& a) { return formatted(soft_text(v), a.positional); }},
      {"indent", indented},
      {"int", to_integer},
      {"items", items},
      {"join", join},
      {"last", end_of<false>},
      {"length", length_of},
      {"list", list},
      {"lower", changed<lower>},
      {"map", map},
      {"max", extreme<true>},
      {"min", extreme<false>},
      {"reject", select<false, false>},
      {"rejectattr", select<true, false>},
      {"replace", replace},
      {"reverse", reversed},
      {"round", rounded},
      {"safe", [](const Value& v, const Arguments&) { return as_markup(to_text(v)); }},
      {"select", select<false, true>},
      {"selectattr", select<true, true>},
      {"sort", sort},
      {"string", [](const Value& v, const Arguments&) { return soft_text(v); }},
      {"sum", sum},
      {"title", [](const Value& v, const Arguments&) { return Value{title_of_words(to_text(v))}; }},
      {"tojson", tojson},
      {"trim", trim},
      {"truncate", truncated},
      {"unique", unique},
      {"upper", changed<upper>},
  };
  return table;
}

}  // namespace

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments) {
  return look_up(filters(), "filter", name)(value, arguments);
}

}  // namespace redco::text::jinja
