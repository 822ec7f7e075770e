#pragma once

#include <functional>
#include <thread>

namespace redco {

/// A thread that takes no signals: those are for the threads of the program.
std::thread thread_without_signals(std::function<void()> body);

}  // namespace redco
