// The tests of Jinja's `is`.
#include "jinja_text.h"
#include "jinja_values.h"

#include <algorithm>

namespace redco::text::jinja {

namespace {

using Test = bool (*)(const Value&, const Arguments&);

const Value& operand(const Arguments& arguments) {
  require(arguments.positional.size() == 1, "a test takes one value, got ",
          arguments.positional.size());
  return arguments.positional[0];
}

bool is_iterable(const Value& value) { return has_items(value) || value.get<Value::Undefined>(); }

bool has_remainder(const Value& value, const Value& divisor, int64_t remainder) {
  return is_equal(apply_operator("%", value, divisor), {remainder});
}

template <bool upper_case>
bool is_in_case(const Value& value, const Arguments&) {
  std::string text = to_text(value);
  // Letters without case are allowed, but not on their own.
  return text == (upper_case ? upper(text) : lower(text)) && upper(text) != lower(text);
}

// Whether the value is ordered before (-1) or after (1) the operand.
template <int side, bool or_equal>
bool compared(const Value& value, const Arguments& arguments) {
  int order = compare(value, operand(arguments));
  return order == 0 ? or_equal : (order > 0) == (side > 0);
}

const std::map<std::string, Test>& tests() {
  constexpr Test equal = [](const Value& v, const Arguments& a) { return is_equal(v, operand(a)); };
  constexpr Test unequal = [](const Value& v, const Arguments& a) {
    return !is_equal(v, operand(a));
  };
  constexpr Test less = compared<-1, false>;
  constexpr Test less_or_equal = compared<-1, true>;
  constexpr Test greater = compared<1, false>;
  constexpr Test greater_or_equal = compared<1, true>;
  static const std::map<std::string, Test> table = {
      {"defined", [](const Value& v, const Arguments&) { return !v.get<Value::Undefined>(); }},
      {"undefined",
       [](const Value& v, const Arguments&) { return v.get<Value::Undefined>() != nullptr; }},
      {"none", [](const Value& v, const Arguments&) { return v.get<Value::None>() != nullptr; }},
      {"string", [](const Value& v, const Arguments&) { return v.get<std::string>() != nullptr; }},
      {"mapping",
       [](const Value& v, const Arguments&) { return v.dict() && v.kind == Value::Kind::plain; }},
      {"sequence",
       [](const Value& v, const Arguments&) {
         return is_iterable(v) && v.kind != Value::Kind::generator;
       }},
      {"iterable", [](const Value& v, const Arguments&) { return is_iterable(v); }},
      {"callable",
       [](const Value& v, const Arguments&) {
         return v.function() != nullptr || v.get<Value::Undefined>() != nullptr;
       }},
      {"boolean", [](const Value& v, const Arguments&) { return v.get<bool>() != nullptr; }},
      {"integer", [](const Value& v, const Arguments&) { return v.get<int64_t>() != nullptr; }},
      {"float", [](const Value& v, const Arguments&) { return v.get<double>() != nullptr; }},
      {"number", [](const Value& v, const Arguments&) { return number_of(v).has_value(); }},
      {"true", [](const Value& v, const Arguments&) { return v.get<bool>() && *v.get<bool>(); }},
      {"false", [](const Value& v, const Arguments&) { return v.get<bool>() && !*v.get<bool>(); }},
      {"sameas",
       [](const Value& v, const Arguments& a) {
         return v.data.index() == operand(a).data.index() && is_equal(v, operand(a));
       }},
      {"in", [](const Value& v, const Arguments& a) { return contains(operand(a), v); }},
      {"odd", [](const Value& v, const Arguments&) { return has_remainder(v, {int64_t{2}}, 1); }},
      {"escaped", [](const Value& v, const Arguments&) { return is_markup(v); }},
      {"even", [](const Value& v, const Arguments&) { return has_remainder(v, {int64_t{2}}, 0); }},
      {"divisibleby",
       [](const Value& v, const Arguments& a) { return has_remainder(v, operand(a), 0); }},
      {"upper", is_in_case<true>},
      {"lower", is_in_case<false>},
      {"equalto", equal},
      {"eq", equal},
      {"==", equal},
      {"ne", unequal},
      {"!=", unequal},
      {"lt", less},
      {"<", less},
      {"lessthan", less},
      {"le", less_or_equal},
      {"<=", less_or_equal},
      {"gt", greater},
      {">", greater},
      {"greaterthan", greater},
      {"ge", greater_or_equal},
      {">=", greater_or_equal},
  };
  return table;
}

}  // namespace

bool apply_test(const std::string& name, const Value& value, const Arguments& arguments) {
  return look_up(tests(), "test", name)(value, arguments);
}

}  // namespace redco::text::jinja
