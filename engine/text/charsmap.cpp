// Reads SentencePiece's character maps.

#include "charsmap.h"

#include "utf8.h"

#include <redco/error.h>

namespace redco::text {

namespace {

uint32_t little_endian(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

}  // namespace

CharsMap::CharsMap(const std::string& where, std::string_view bytes) {
  require(bytes.size() > 4, where, "the character map ends inside its first number");
  size_t size = little_endian(bytes, 0);
  require(size >= 4 && size % 4 == 0 && size <= bytes.size() - 4, where,
          "the character map says its trie has ", size, " bytes of the ", bytes.size() - 4,
          " that follow");
  for (size_t i = 0; i < size; i += 4) units_.push_back(little_endian(bytes, 4 + i));
  replacements_ = bytes.substr(4 + size);
  require(valid_utf8(replacements_) == replacements_, where,
          "the character map's replacements are not UTF-8");
}

// A unit of the trie: bits 0-7 and 31 are its label, bit 8 is set if a key ends here, bits 10-30
// are the offset of its children, in steps of 256 if bit 9 is set. A leaf has the value in bits
// 0-30.
template <class Found>
void CharsMap::each_prefix(std::string_view text, Found found) const {
  auto children = [](uint32_t unit) { return (unit >> 10) << ((unit & 0x200) >> 6); };
  size_t position = children(units_[0]);
  for (size_t i = 0; i < text.size() && text[i] != '\0'; ++i) {
    auto byte = static_cast<unsigned char>(text[i]);
    position ^= byte;
    if (position >= units_.size()) return;
    uint32_t unit = units_[position];
    if ((unit & 0x800000FF) != byte) return;
    position ^= children(unit);
    if (position >= units_.size()) return;
    if ((unit & 0x100) != 0 && !found(i + 1, units_[position] & 0x7FFFFFFF)) return;
  }
}

std::string_view CharsMap::replacement(uint32_t offset) const {
  if (offset >= replacements_.size()) return {};
  std::string_view rest = std::string_view(replacements_).substr(offset);
  // An offset in a damaged map may point inside a character.
  while (!rest.empty() && (rest.front() & 0xC0) == 0x80) rest.remove_prefix(1);
  return rest.substr(0, rest.find('\0'));
}

std::optional<CharsMap::Match> CharsMap::longest(std::string_view text) const {
  std::optional<Match> match;
  each_prefix(text, [&](size_t size, uint32_t offset) {
    match = Match{size, replacement(offset)};
    return true;
  });
  // Keys of a damaged map may end inside a character of the text.
  if (match && match->size < text.size() && (text[match->size] & 0xC0) == 0x80) return {};
  return match;
}

std::optional<CharsMap::Match> CharsMap::shortest(std::string_view text) const {
  std::optional<Match> match;
  each_prefix(text, [&](size_t size, uint32_t offset) {
    match = Match{size, replacement(offset)};
    return false;
  });
  return match;
}

std::string decode_base64(const std::string& where, std::string_view text) {
  constexpr std::string_view letters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  std::string bytes;
  bytes.reserve(text.size() * 3 / 4);
  uint32_t bits = 0;
  int n_bits = 0;
  for (char c : text) {
    size_t value = letters.find(c);
    require(value != letters.npos, where, "not base64: it has the character with the code ",
            int(static_cast<unsigned char>(c)));
    bits = bits << 6 | uint32_t(value);
    n_bits += 6;
    if (n_bits >= 8) bytes += char(bits >> (n_bits -= 8) & 0xFF);
  }
  return bytes;
}

}  // namespace redco::text
