#pragma once

#include <redco/export.h>

#include <functional>
#include <thread>

namespace redco {

/// Starts a thread with all signals blocked: those are for the program's own threads. It inherits
/// the current devices of the thread that starts it. Throws std::system_error if no thread can be
/// created.
REDCO_API std::thread thread_without_signals(std::function<void()> body);

}  // namespace redco
