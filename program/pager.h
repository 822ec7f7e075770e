#pragma once

#include <string>

namespace redco {

/// Shows a text with the user's pager, $PAGER or `less -FRX`, and waits for its end. Ctrl-C is left
/// to the pager. Returns false if there is no such program.
bool page(const std::string& text);

}  // namespace redco
