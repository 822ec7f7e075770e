#pragma once

#include <memory>

namespace redco {

class Console;

/// Lines on standard error, and the progress of a run: a bar on a terminal, elsewhere a plain line
/// every ten seconds.
std::shared_ptr<Console> make_terminal();

}  // namespace redco
