#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace redco::text {

/// The last code point of Unicode.
inline constexpr char32_t last_code_point = 0x10FFFF;

/// The code points from `first` to `last`.
struct CodePoints {
  char32_t first, last;
  auto operator<=>(const CodePoints&) const = default;
};

/// The code points that are in none of these ranges, in order.
std::vector<CodePoints> complement_of(std::vector<CodePoints> ranges);

/// A regular set of texts: a deterministic automaton whose symbols are code points. All functions
/// that make one throw Error if it has more than `most_states` states.
class Language {
 public:
  static constexpr size_t most_states = 20000;

  struct Edge {
    CodePoints on;
    uint32_t to;
  };
  struct State {
    std::vector<Edge> edges = {};  ///< in the order of code points, which differ
    bool is_end = false;
  };

  /// The first state is the start.
  explicit Language(std::vector<State> states);

  static Language of_all();
  static Language of_texts(const std::vector<std::string>& texts);
  /// Texts of `least` to `most` code points; `most` may be Grammar::unlimited.
  static Language of_lengths(int64_t least, int64_t most);

  Language operator&(const Language& other) const;
  Language operator!() const;
  bool contains(std::string_view text) const;
  const std::vector<State>& states() const { return states_; }

 private:
  std::vector<State> states_;
};

/// The texts in which a regular expression of ECMA-262 (with the flag u) finds something, which is
/// how JSON schemas use them. Throws Error for what no automaton can read, such as \1 and \b, and
/// for assertions like (?=...) unless they come right after a ^ that begins the expression.
Language language_of_pattern(std::string_view pattern);

/// A regular expression for the texts of a `format` of JSON schemas; "" for an unknown one.
std::string pattern_of_format(std::string_view format);

}  // namespace redco::text
