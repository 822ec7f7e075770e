#pragma once

#include "text.h"

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace redco::text {

/// The pattern of a Split or Replace: a string, or a regular expression in the syntax common to
/// Oniguruma and PCRE2, with Unicode's classes.
class Pattern {
 public:
  static Pattern literal(std::string text);
  /// Throws Error, beginning with `where`, for an invalid expression.
  static Pattern regex(const std::string& where, const std::string& expression);

  /// Calls `found` with each match, from left to right. Throws Error if a text causes excessive
  /// backtracking.
  void each_match(std::string_view text, const std::function<void(Range)>& found) const;

 private:
  struct Compiled;
  std::string source_;
  std::shared_ptr<const Compiled> compiled_;  ///< null: the source is the string to find
};

}  // namespace redco::text
