#pragma once

#include <redco/export.h>

#include <string>
#include <string_view>

namespace redco {

/// Escapes a text of another process for a terminal or log: control characters other than newlines
/// and tabs, and bytes that are not UTF-8, become "\x1b" and the like.
REDCO_API std::string printable(std::string_view text);

}  // namespace redco
