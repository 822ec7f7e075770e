#pragma once

#include <redco/export.h>

#include <functional>
#include <string>

namespace redco {

/// Sets the function that ends the program when a signal requested its end and a function of the
/// script does not return. It is called on any thread. The library cannot end a program itself:
/// without this function it keeps waiting.
REDCO_API void set_forced_stop(std::function<void(int signal, const std::string& text)> end);
REDCO_API bool has_forced_stop();
/// Ends the program if a function was set.
REDCO_API void force_stop(int signal, const std::string& text);

/// The signal of the last `request_stop`, or SIGINT for `request_interrupt`; 0 if there was none.
REDCO_API int asked_to_end() noexcept;
/// Whether the last request_interrupt has not been handled yet.
REDCO_API bool is_interrupt_pending() noexcept;
/// Records the signal. Safe in a signal handler.
REDCO_API void note_asked_to_end(int signal) noexcept;

}  // namespace redco
