#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace redco::text {

/// GPT-2's alphabet of bytes: each byte as a visible character, itself where it is a printable one
/// of Latin-1, else the next from U+0100 on. A space is U+0120.
const std::array<std::string, 256>& byte_characters();

/// The bytes that the characters stand for; nothing when one of them is not of the alphabet.
std::optional<std::string> bytes_of_characters(std::string_view text);

}  // namespace redco::text
