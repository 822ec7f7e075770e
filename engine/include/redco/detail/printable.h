#pragma once

#include <redco/export.h>

#include <string>
#include <string_view>

namespace redco {

/// A text of another process for a terminal or a log: control characters other than the ends of
/// lines and tabs, and what is no UTF-8, come as "\x1b".
REDCO_API std::string printable(std::string_view text);

}  // namespace redco
