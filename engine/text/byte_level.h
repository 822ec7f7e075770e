#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace redco::text {

/// GPT-2's alphabet of bytes: each byte as a visible character, the byte's own character if it is
/// printable in Latin-1, else the next one from U+0100 on. A space is U+0120.
const std::array<std::string, 256>& byte_characters();

/// Maps characters back to bytes; none if one of them is not in the alphabet.
std::optional<std::string> bytes_of_characters(std::string_view text);

}  // namespace redco::text
