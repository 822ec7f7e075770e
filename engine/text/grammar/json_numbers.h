#pragma once

#include "grammar.h"

#include <redco/json.h>

#include <optional>
#include <string>

namespace redco::text {

/// A number with all its decimal digits.
struct Decimal {
  bool is_negative = false;
  std::string whole = "0";  ///< without zeros at the beginning
  std::string fraction;     ///< without zeros at the end

  /// None for a value that is no number.
  static std::optional<Decimal> of(const Json& value);
  bool is_zero() const { return whole == "0" && fraction.empty(); }
  int compare(const Decimal& other) const;  ///< less than, equal to or greater than 0
};

/// A set of numbers.
struct Numbers {
  struct Bound {
    Decimal value;
    bool is_exclusive;
  };
  bool is_whole = false;
  std::optional<Bound> least, most;
  /// Multiples of `unit` / 10^scale; 0 for all.
  int64_t unit = 0;
  int scale = 0;

  void raise_least(const Bound& bound);
  void lower_most(const Bound& bound);
  /// Keeps the multiples of a number. Returns false if they are too many to count.
  bool keep_multiples(const Decimal& of);
  bool contains(const Decimal& value) const;
  bool is_limited() const { return least || most || unit != 0; }

  /// Their texts without an exponent. Whole numbers have up to 16 digits, others up to 15 in all,
  /// which a reader's double can tell apart.
  Grammar::Node texts(Grammar& grammar) const;
};

}  // namespace redco::text
