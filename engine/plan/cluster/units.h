#pragma once

#include <redco/export.h>

#include <optional>
#include <string>

namespace redco::plan {

/// Parses "936 GB/s" or "400 Gb/s" (bits) to bytes per second; none if it is something else.
REDCO_API std::optional<double> bytes_per_second(const std::string& text);
/// Parses "80 GiB" or "24 GB" to bytes; none if it is something else.
REDCO_API std::optional<double> bytes(const std::string& text);
/// The shortest text that reads back as this number, with a point: for TOML.
REDCO_API std::string number_text(double value);
/// Positive whole number; none if it is something else.
REDCO_API std::optional<long> whole_number(const std::string& text);
/// Without blanks at the ends.
REDCO_API std::string trimmed(const std::string& text);

}  // namespace redco::plan
