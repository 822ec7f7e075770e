#pragma once

#include <cstddef>
#include <memory>

namespace redco {

class Console;

/// Returns a console that writes lines to standard error, and a run's progress: as a bar on a
/// terminal, otherwise as a plain line every ten seconds.
std::shared_ptr<Console> make_terminal();

/// The number of columns of the terminal that a descriptor writes to; 0 if it is not a terminal.
size_t terminal_width(int descriptor);

/// The number of its rows; 0 if it is not a terminal.
size_t terminal_height(int descriptor);

}  // namespace redco
