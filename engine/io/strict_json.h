#pragma once

#include <nlohmann/json.hpp>

#include <functional>
#include <string>
#include <string_view>

namespace redco::io {

/// Shortens text from a file for a message to `limit` bytes, without splitting a character.
std::string excerpt(const std::string& text, size_t limit = 80);

/// The same in single quotes.
std::string in_quotes(const std::string& text);

/// The parser's callback: receives each key, value, beginning and end with its depth, and returns
/// false to drop it.
using JsonHook = std::function<bool(int depth, nlohmann::json::parse_event_t, nlohmann::json&)>;

/// Parses JSON without duplicate keys and with at most `max_depth` nested objects and lists. Throws
/// Error, beginning with `where`, for anything else.
nlohmann::json parse_json(const std::string& where, std::string_view text, int max_depth,
                          const JsonHook& hook = nullptr);

/// Throws Error, beginning with `where`, for what the parser found.
[[noreturn]] void fail_to_parse(const std::string& where, const nlohmann::json::exception& error);

/// Throws Error, beginning with `where`, for a zero byte, which the parser takes for the end of the
/// text.
void check_no_zero_byte(const std::string& where, std::string_view text);

/// Formats `text` as a JSON string with quotes. Throws Error, beginning with `where`, if it is not
/// UTF-8.
std::string json_string(const std::string& where, const std::string& text);

}  // namespace redco::io
