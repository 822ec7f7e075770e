#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace redco::text {

/// SentencePiece's precompiled character map from byte strings to replacements. In the file,
/// little-endian: the size in bytes of a double-array trie, the trie (of darts-clone), and the
/// replacements, each terminated by a zero byte; the trie's values are their offsets.
class CharsMap {
 public:
  /// Throws Error, beginning with `where`, if `bytes` is not a valid map.
  CharsMap(const std::string& where, std::string_view bytes);

  struct Match {
    size_t size;  ///< number of replaced bytes of the text
    std::string_view replacement;
  };
  std::optional<Match> longest(std::string_view text) const;
  std::optional<Match> shortest(std::string_view text) const;

 private:
  template <class Found>
  void each_prefix(std::string_view text, Found found) const;
  std::string_view replacement(uint32_t offset) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

/// Decodes base64 (RFC 4648, padding optional). Throws Error for other letters.
std::string decode_base64(const std::string& where, std::string_view text);

}  // namespace redco::text
