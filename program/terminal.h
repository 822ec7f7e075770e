#pragma once

#include <cstddef>
#include <memory>

namespace redco {

class Console;

/// Lines on standard error, and the progress of a run: a bar on a terminal, elsewhere a plain line
/// every ten seconds.
std::shared_ptr<Console> make_terminal();

/// The columns of the terminal that a descriptor writes to; 0 where it is none.
size_t terminal_width(int descriptor);

}  // namespace redco
