// Numbers with units.

#include "units.h"

#include "../../core/require_usage.h"

#include <redco/cluster.h>

#include <charconv>
#include <cmath>
#include <string_view>

namespace redco {

namespace plan {

namespace {

struct Prefix {
  std::string_view text;
  double factor;
};
constexpr double kibi = 1024;
constexpr Prefix prefixes[] = {
    {"", 1},
    {"k", 1e3},
    {"K", 1e3},
    {"M", 1e6},
    {"G", 1e9},
    {"T", 1e12},
    {"Ki", kibi},
    {"Mi", kibi* kibi},
    {"Gi", kibi* kibi* kibi},
    {"Ti", kibi* kibi* kibi* kibi},
};

// The factor of a unit such as "GiB" that ends in `base`.
std::optional<double> factor(std::string_view unit, std::string_view base) {
  if (!unit.ends_with(base)) return std::nullopt;
  unit.remove_suffix(base.size());
  for (const Prefix& prefix : prefixes)
    if (unit == prefix.text) return prefix.factor;
  return std::nullopt;
}

struct Quantity {
  double number;
  std::string unit;
};

std::optional<Quantity> quantity(const std::string& text) {
  std::string word = trimmed(text);
  double number = 0;
  auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return std::nullopt;
  return Quantity{number, trimmed(std::string(end))};
}

}  // namespace

std::string trimmed(const std::string& text) {
  size_t from = text.find_first_not_of(" \t");
  if (from == std::string::npos) return "";
  return text.substr(from, text.find_last_not_of(" \t") - from + 1);
}

std::optional<long> whole_number(const std::string& text) {
  long number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number <= 0) return std::nullopt;
  return number;
}

std::optional<double> bytes(const std::string& text) {
  auto given = quantity(text);
  auto unit = given ? factor(given->unit, "B") : std::nullopt;
  return unit ? std::optional(given->number * *unit) : std::nullopt;
}

std::optional<double> bytes_per_second(const std::string& text) {
  auto given = quantity(text);
  if (!given) return std::nullopt;
  if (auto unit = factor(given->unit, "B/s")) return given->number * *unit;
  for (const char* bits : {"bit/s", "b/s"})
    if (auto unit = factor(given->unit, bits)) return given->number * *unit / 8;
  return std::nullopt;
}

std::string number_text(double value) {
  char text[40];
  std::string digits(text, std::to_chars(text, std::end(text), value).ptr);
  return digits.find_first_of(".en") == std::string::npos ? digits + ".0" : digits;
}

}  // namespace plan

int64_t parse_bytes(const std::string& text, const std::string& where) {
  auto number = plan::bytes(text);
  require_usage(number && *number < 9e18, where, ": expected bytes such as \"80 GiB\", got \"",
                text, "\"");
  return std::llround(*number);
}

}  // namespace redco
