#pragma once

#include "text.h"

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace redco::text {

/// What a Split or Replace looks for: a string, or a regular expression in the syntax that
/// Oniguruma and PCRE2 share, with Unicode's classes.
class Pattern {
 public:
  static Pattern literal(std::string text);
  /// Throws Error, beginning with `where`, when the expression is not one.
  static Pattern regex(const std::string& where, const std::string& expression);

  /// Calls `found` with each match in turn, from left to right. Throws Error when a text makes the
  /// expression backtrack without end.
  void each_match(std::string_view text, const std::function<void(Range)>& found) const;

 private:
  struct Compiled;
  std::string source_;
  std::shared_ptr<const Compiled> compiled_;  ///< null: the source is the string to find
};

}  // namespace redco::text
