#pragma once

#include <redco/export.h>

#include <functional>
#include <string>

namespace redco {

/// A program that was asked to end by a signal, while a function of the script does not return,
/// ends in the midst of it. The library cannot do that: the program names a function that ends it,
/// which is called on any thread. Without one the library waits on.
REDCO_API void set_forced_stop(std::function<void(int signal, const std::string& text)> end);
REDCO_API bool has_forced_stop();
/// Ends the program, if it can be.
REDCO_API void force_stop(int signal, const std::string& text);

/// The last signal of `request_stop` or, SIGINT, of `request_interrupt`; 0: there was none.
REDCO_API int asked_to_end() noexcept;
/// Whether nothing has heard of the last request_interrupt yet.
REDCO_API bool is_interrupt_pending() noexcept;
/// Safe in a signal handler.
REDCO_API void note_asked_to_end(int signal) noexcept;

}  // namespace redco
