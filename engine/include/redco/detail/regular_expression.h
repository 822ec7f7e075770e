#pragma once

#include <redco/export.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redco {

/// Bytes [begin, end) of a text.
using ByteRange = std::pair<size_t, size_t>;

/// A match of a regular expression: the whole, and each group that took part in it.
struct RegexMatch {
  ByteRange whole;
  std::vector<std::optional<ByteRange>> groups;
};

/// Returns all matches from left to right, as Python's `re.finditer` does. The syntax is PCRE2's,
/// with Unicode's classes. Throws Error for an invalid expression and for a text that causes
/// excessive backtracking. Bytes of the text that are not UTF-8 are an error.
REDCO_API std::vector<RegexMatch> find_matches(const std::string& expression,
                                               std::string_view text);

}  // namespace redco
