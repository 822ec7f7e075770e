// Tokens for single bytes.

#include "model.h"

#include "utf8.h"

#include <charconv>

namespace redco::text {

ByteTokens::ByteTokens(const Vocabulary& vocabulary) {
  constexpr char digits[] = "0123456789ABCDEF";
  for (size_t byte = 0; byte < 256; ++byte)
    ids_[byte] = vocabulary.id(std::string("<0x") + digits[byte >> 4] + digits[byte & 15] + ">");
}

bool ByteTokens::append(std::string_view word, size_t begin, size_t end,
                        std::vector<Token>& tokens) const {
  auto id = [&](size_t i) { return ids_[static_cast<unsigned char>(word[i])]; };
  for (size_t i = begin; i < end; ++i)
    if (!id(i)) return false;
  for (size_t i = begin; i < end; ++i) tokens.push_back({*id(i), i, i + 1});
  return true;
}

std::optional<unsigned char> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  unsigned char byte = 0;
  auto parsed = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  if (parsed.ec != std::errc() || parsed.ptr != token.data() + 5) return std::nullopt;
  return byte;
}

}  // namespace redco::text
