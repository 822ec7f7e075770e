#pragma once

#include <nlohmann/json.hpp>

#include <functional>
#include <string>
#include <string_view>

namespace redco {

/// Text from a file for a message: cut to `limit` bytes, though not inside a character.
std::string excerpt(const std::string& text, size_t limit = 80);

/// The same in single quotes.
std::string in_quotes(const std::string& text);

/// The parser's callback: sees each key, value, beginning and end with its depth, and drops what it
/// answers false to.
using JsonHook = std::function<bool(int depth, nlohmann::json::parse_event_t, nlohmann::json&)>;

/// Parses JSON whose objects have no key twice and which nests at most `max_depth` objects and
/// lists. Throws Error, its text beginning with `where`, for anything else.
nlohmann::json parse_json(const std::string& where, std::string_view text, int max_depth,
                          const JsonHook& hook = nullptr);

/// Throws Error, beginning with `where`, for a zero byte: the parser takes it for the end of the
/// text and would not see what follows.
void check_no_zero_byte(const std::string& where, std::string_view text);

/// `text` as JSON, quotes included. Throws Error, beginning with `where`, when it is not UTF-8.
std::string json_string(const std::string& where, const std::string& text);

}  // namespace redco
