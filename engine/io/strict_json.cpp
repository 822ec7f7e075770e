// JSON parsing that rejects duplicate keys, deep nesting and zero bytes.

#include "strict_json.h"

#include <redco/error.h>

#include <algorithm>
#include <set>
#include <vector>

namespace redco::io {

using nlohmann::json;

std::string excerpt(const std::string& text, size_t limit) {
  if (text.size() <= limit) return text;
  size_t end = limit;
  while (end > 0 && (text[end] & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

std::string in_quotes(const std::string& text) {
  std::string quoted = "'";
  quoted += excerpt(text);
  quoted += "'";
  std::replace(quoted.begin(), quoted.end(), '\0', '?');  // would end the message
  return quoted;
}

void fail_to_parse(const std::string& where, const nlohmann::json::exception& error) {
  std::string text = error.what();
  if (text.starts_with("[json.exception.")) text.erase(0, text.find("] ") + 2);
  fail(where, "not valid JSON: ", excerpt(text, 200));
}

void check_no_zero_byte(const std::string& where, std::string_view text) {
  size_t zero = text.find('\0');
  require(zero == text.npos, where, "not valid JSON: a zero byte at ", zero);
}

json parse_json(const std::string& where, std::string_view text, int max_depth,
                const JsonHook& hook) {
  using Event = json::parse_event_t;
  std::vector<std::set<std::string>> keys;  // of the unfinished objects
  auto check = [&](int depth, Event event, json& value) {
    if (event == Event::object_start || event == Event::array_start)
      require(depth < max_depth, where, "nested deeper than the ", max_depth, " levels expected");
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key)
      require(keys.back().insert(value.get<std::string>()).second, where, "the key ",
              in_quotes(value.get<std::string>()), " is there twice, expected once");
    return hook ? hook(depth, event, value) : true;
  };
  check_no_zero_byte(where, text);
  try {
    return json::parse(text.begin(), text.end(), check);
  } catch (const json::exception& error) {
    fail_to_parse(where, error);
  }
}

std::string json_string(const std::string& where, const std::string& text) {
  try {
    return json(text).dump();
  } catch (const json::exception&) {
    std::string shown = json(text).dump(-1, ' ', true, json::error_handler_t::replace);
    fail(where, "the text ", excerpt(shown), " is not UTF-8, as names and metadata must be");
  }
}

}  // namespace redco::io
