// Converts values of Jinja to text as Python does.

#include "jinja_text.h"

#include "../utf8.h"
#include "jinja_values.h"

#include <redco/detail/unicode.h>
#include <redco/error.h>

#include <utf8proc.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace redco::text::jinja {

namespace {

std::string in_title_case(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    CodePoint c = code_point_at(text, i);
    append_code_point(result, static_cast<char32_t>(utf8proc_totitle(int32_t(c.value))));
    i += c.size;
  }
  return result;
}

bool is_letter_with_case(char32_t c) {
  auto code = static_cast<utf8proc_int32_t>(c);
  return utf8proc_tolower(code) != code || utf8proc_toupper(code) != code;
}

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

template <class... Values>
std::string printed(const char* format, Values... values) {
  std::array<char, 512> text;
  int size = std::snprintf(text.data(), text.size(), format, values...);
  require(size >= 0 && size_t(size) < text.size(), "a formatted number is too long");
  return {text.data(), size_t(size)};
}

std::string repr_of_text(std::string_view text) {
  char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  std::string result(1, quote);
  for (size_t i = 0; i < text.size();) {
    CodePoint c = code_point_at(text, i);
    if (c.value == '\n')
      result += "\\n";
    else if (c.value == '\t')
      result += "\\t";
    else if (c.value == '\r')
      result += "\\r";
    else if (c.value == '\\' || c.value == static_cast<char32_t>(quote))
      result.append({'\\', text[i]});
    else if (is_printable(c.value))
      result.append(text, i, c.size);
    else
      result += printed(c.value < 0x100     ? "\\x%02x"
                        : c.value < 0x10000 ? "\\u%04x"
                                            : "\\U%08x",
                        unsigned(c.value));
    i += c.size;
  }
  return result + quote;
}

// The shortest digits that round-trip, in Python's format.
std::string text_of_real(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 32> written;
  auto end = std::to_chars(written.data(), written.data() + written.size(), value,
                           std::chars_format::scientific);
  std::string digits(written.data(), end.ptr);
  size_t e = digits.find('e');
  int exponent = std::stoi(digits.substr(e + 1));
  if (exponent < -4 || exponent >= 16) return digits;
  std::string sign = value < 0 || digits[0] == '-' ? "-" : "";
  digits = digits.substr(sign.size(), e - sign.size());
  std::erase(digits, '.');
  auto size = int(digits.size());
  if (exponent < 0) return sign + "0." + std::string(size_t(-exponent - 1), '0') + digits;
  if (size <= exponent + 1)
    return sign + digits + std::string(size_t(exponent + 1 - size), '0') + ".0";
  auto point = size_t(exponent) + 1;
  return sign + digits.substr(0, point) + "." + digits.substr(point);
}

// Appends repr(value) to `out`.
void write_repr(std::string& out, const Value& value, int depth) {
  require(depth <= deepest, "a text of lists that are nested too deep");
  check_length(out.size());
  if (const std::string* text = value.get<std::string>()) {
    out += is_markup(value) ? "Markup(" + repr_of_text(*text) + ")" : repr_of_text(*text);
  } else if (const Value::List* list = value.list()) {
    require(is_list_or_tuple(value), kind_of(value),
            " is written as text: add '| list' or '| join'");
    bool is_tuple = value.kind == Value::Kind::tuple;
    out += is_tuple ? '(' : '[';
    for (size_t i = 0; i < list->size(); ++i) {
      if (i > 0) out += ", ";
      write_repr(out, (*list)[i], depth + 1);
    }
    if (is_tuple && list->size() == 1) out += ',';
    out += is_tuple ? ')' : ']';
  } else if (const Value::Dict* dict = value.dict()) {
    require(value.kind == Value::Kind::plain, kind_of(value), " is written as text");
    out += '{';
    for (size_t i = 0; i < dict->size(); ++i) {
      if (i > 0) out += ", ";
      write_repr(out, (*dict)[i].first, depth + 1);
      out += ": ";
      write_repr(out, (*dict)[i].second, depth + 1);
    }
    out += '}';
  } else {
    out += value.get<Value::Undefined>() ? "Undefined" : to_text(value);
  }
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  void write(const Value& value, int depth) {
    require(depth <= deepest, "tojson: nested too deep");
    require(out_.size() <= longest_text, "tojson: longer than ", longest_text, " bytes");
    if (const Value::List* list = value.list()) {
      require(is_list_or_tuple(value), "tojson of ", kind_of(value), ": add '| list' before it");
      write_all(*list, "[]", depth, [&](const Value& entry) { write(entry, depth + 1); });
    } else if (value.dict()) {
      require(value.kind == Value::Kind::plain, "tojson of ", kind_of(value));
      write_dict(*value.dict(), depth);
    } else {
      write_leaf(value);
    }
  }

  std::string take() { return std::move(out_); }

 private:
  void write_dict(const Value::Dict& dict, int depth) {
    auto write_member = [&](const auto& entry) {
      write_key(entry.first);
      out_ += style_.after_key;
      write(entry.second, depth + 1);
    };
    if (!style_.sort_keys) return write_all(dict, "{}", depth, write_member);
    Value::Dict sorted = dict;
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return compare(a.first, b.first) < 0; });
    write_all(sorted, "{}", depth, write_member);
  }

  // Keys that are none, booleans and numbers become texts.
  void write_key(const Value& key) {
    if (key.get<std::string>()) return write_leaf(key);
    out_ += '"';
    write_leaf(key);
    out_ += '"';
  }

  template <class Entries, class Write>
  void write_all(const Entries& entries, const char* brackets, int depth, Write write_entry) {
    out_ += brackets[0];
    bool is_first = true;
    for (const auto& entry : entries) {
      if (!is_first) out_ += style_.between_items;
      is_first = false;
      break_line(depth + 1);
      write_entry(entry);
    }
    if (!entries.empty()) break_line(depth);
    out_ += brackets[1];
  }

  void break_line(int depth) {
    if (style_.indent < 0) return;
    out_ += '\n';
    out_.append(size_t(depth * style_.indent), ' ');
  }

  void write_text(const std::string& text) {
    using nlohmann::json;
    std::string written =
        json(text).dump(-1, ' ', style_.ensure_ascii, json::error_handler_t::replace);
    out_ += written;
  }

  void write_leaf(const Value& value) {
    if (const std::string* text = value.get<std::string>()) return write_text(*text);
    if (const bool* boolean = value.get<bool>()) {
      out_ += *boolean ? "true" : "false";
    } else if (value.get<Value::None>()) {
      out_ += "null";
    } else if (const double* real = value.get<double>(); real && !std::isfinite(*real)) {
      out_ += std::isnan(*real) ? "NaN" : *real < 0 ? "-Infinity" : "Infinity";
    } else {
      require(number_of(value).has_value(), "tojson of ", kind_of(value));
      out_ += to_text(value);
    }
  }

  const JsonStyle& style_;
  std::string out_;
};

// One conversion of `text % values`, such as "%-5.2f": flags with width and precision, and the
// letter. In markup texts are escaped.
std::string converted(std::string flags, char letter, const Value& value, bool escapes) {
  if (letter == 's' || letter == 'r') {
    Value text = letter == 's' ? value : Value{to_repr(value)};
    require(flags == "%", "the format '", flags, letter, "' is not supported");
    return escapes ? escaped(text) : to_text(text);
  }
  if (letter == 'd' || letter == 'i' || letter == 'x' || letter == 'X' || letter == 'o') {
    const double* real = letter == 'd' || letter == 'i' ? value.get<double>() : nullptr;
    require(!real || std::isfinite(*real), "the format '%", letter, "' of ", to_text(value));
    if (real && std::abs(*real) >= 0x1p63) return printed((flags + ".0f").c_str(), *real);
    auto integer = real ? std::optional(int64_t(*real)) : integer_of(value);
    require(integer.has_value(), "the format '%", letter, "' of ", kind_of(value));
    return printed((flags + "l" + letter).c_str(), long(*integer));
  }
  require(letter == 'f' || letter == 'F' || letter == 'e' || letter == 'g', "the format '%", letter,
          "' is not supported");
  auto number = number_of(value);
  require(number.has_value(), "the format '%", letter, "' of ", kind_of(value));
  return printed((flags + letter).c_str(), *number);
}

}  // namespace

std::string to_text(const Value& value) {
  if (const std::string* text = value.get<std::string>()) return *text;
  if (value.get<Value::Undefined>()) return "";
  if (value.get<Value::None>()) return "None";
  if (const bool* boolean = value.get<bool>()) return *boolean ? "True" : "False";
  if (const int64_t* integer = value.get<int64_t>()) return std::to_string(*integer);
  if (const double* real = value.get<double>()) return text_of_real(*real);
  return to_repr(value);
}

std::string to_repr(const Value& value) {
  require(!value.function(), "a function is written as text: is its call missing?");
  std::string out;
  write_repr(out, value, 0);
  return out;
}

std::string to_json(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.write(value, 0);
  return writer.take();
}

Value formatted(const Value& format, const std::vector<Value>& values) {
  const std::string& text = text_of(format);
  std::string result;
  size_t used = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      result += text[i];
      continue;
    }
    size_t letter = text.find_first_not_of("0123456789.+- #", i + 1);
    require(letter != text.npos, "a format ends after its '%'");
    if (text[letter] == '%') {
      result += '%';
    } else {
      require(used < values.size(), "a format has more conversions than the ", values.size(),
              " values");
      result +=
          converted(text.substr(i, letter - i), text[letter], values[used++], is_markup(format));
    }
    check_length(result.size());
    i = letter;
  }
  require(used == values.size(), "a format has ", used, " conversions and ", values.size(),
          " values");
  return text_like(std::move(result), format);
}

std::string format_fields(const std::string& text, const Arguments& arguments) {
  std::string result;
  size_t next = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    bool is_doubled = i + 1 < text.size() && text[i + 1] == text[i];
    if (text[i] != '{' && text[i] != '}') {
      result += text[i];
    } else if (is_doubled) {
      result += text[i++];
    } else {
      size_t end = text.find('}', i);
      require(text[i] == '{' && end != text.npos, "format: a single brace in '", text, "'");
      std::string name = text.substr(i + 1, end - i - 1);
      require(name.find_first_of(":!.[") == name.npos, "format: the field '{", name,
              "}' is not supported, only names and numbers");
      bool is_number = name.find_first_not_of("0123456789") == name.npos && name.size() < 6;
      size_t index = !is_number     ? arguments.positional.size()
                     : name.empty() ? next++
                                    : std::stoul(name);
      const Value* value = argument(arguments, index, name);
      require(value != nullptr, "format: there is no argument for '{", name, "}'");
      result += to_text(*value);
      i = end;
    }
    check_length(result.size());
  }
  return result;
}

std::vector<std::string> characters(std::string_view text) {
  std::vector<std::string> result;
  for (size_t i = 0; i < text.size();) {
    size_t size = code_point_at(text, i).size;
    require(result.size() < size_t(most_entries), "a text of more than ", most_entries,
            " characters");
    result.emplace_back(text.substr(i, size));
    i += size;
  }
  return result;
}

std::vector<std::string> lines_of(std::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    CodePoint c = code_point_at(text, i);
    size_t end = i + c.size;
    bool is_end = (c.value >= '\n' && c.value <= '\r') || (c.value >= 0x1C && c.value <= 0x1E) ||
                  c.value == 0x85 || c.value == 0x2028 || c.value == 0x2029;
    if (c.value == '\r' && end < text.size() && text[end] == '\n') ++end;
    if (is_end) {
      lines.emplace_back(text.substr(begin, (keep_ends ? end : i) - begin));
      begin = end;
    }
    i = end;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

std::string upper(std::string_view text) { return upper_case(text); }
std::string lower(std::string_view text) { return lower_case(text); }

std::string capitalized(std::string_view text) {
  if (text.empty()) return "";
  std::string_view first = text.substr(0, code_point_at(text, 0).size);
  // The first letter decides about the lower case of a sigma after it.
  return in_title_case(first) + lower(text).substr(lower(first).size());
}

std::string title_of_words(std::string_view text) {
  std::string result;
  size_t begin = 0;
  for (size_t end = 0; end < text.size();) {
    CodePoint c = code_point_at(text, end);
    end += c.size;
    bool ends_word = is_whitespace(c.value) ||
                     std::u32string_view(U"-({[<").find(c.value) != std::u32string_view::npos;
    if (!ends_word && end < text.size()) continue;
    std::string_view word = text.substr(begin, end - begin);
    size_t first = code_point_at(word, 0).size;
    result += upper(word.substr(0, first)) + lower(word.substr(first));
    begin = end;
  }
  return result;
}

std::string title_of_letters(std::string_view text) {
  std::string result, lowered = lower(text);
  size_t place = 0;  // in `lowered`
  bool in_word = false;
  for (size_t i = 0; i < text.size();) {
    CodePoint c = code_point_at(text, i);
    std::string_view character = text.substr(i, c.size);
    size_t size = lower(character).size();
    result += in_word ? lowered.substr(place, size) : in_title_case(character);
    in_word = is_letter_with_case(c.value);
    i += c.size;
    place += size;
  }
  return result;
}

}  // namespace redco::text::jinja
