// GPT-2's alphabet of bytes.

#include "byte_level.h"

#include "utf8.h"

namespace redco::text {

namespace {

struct Alphabet {
  std::array<std::string, 256> characters;
  std::array<int, 0x200> bytes;  // by code point; -1 if not in the alphabet

  Alphabet() {
    bytes.fill(-1);
    char32_t spare = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      bool printable =
          (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      char32_t character = printable ? static_cast<char32_t>(byte) : spare++;
      append_code_point(characters[size_t(byte)], character);
      bytes[character] = byte;
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

const std::array<std::string, 256>& byte_characters() { return alphabet().characters; }

std::optional<std::string> bytes_of_characters(std::string_view text) {
  const Alphabet& known = alphabet();
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    CodePoint c = code_point_at(text, i);
    if (c.value >= known.bytes.size() || known.bytes[c.value] < 0) return std::nullopt;
    bytes += char(known.bytes[c.value]);
    i += c.size;
  }
  return bytes;
}

}  // namespace redco::text
