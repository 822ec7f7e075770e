#pragma once

#include <redco/export.h>

#include <functional>
#include <thread>

namespace redco {

/// A thread that takes no signals: those are for the threads of the program. Its current devices
/// are those of the thread that starts it. Throws std::system_error where there can be no more
/// threads.
REDCO_API std::thread thread_without_signals(std::function<void()> body);

}  // namespace redco
