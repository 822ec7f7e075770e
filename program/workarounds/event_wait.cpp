// Gives up the core instead of spinning while Gloo cannot handle an event.
//
// Gloo's event loop tries to lock the connection of an event. If another thread holds the lock, the
// loop asks for events again at once, and the kernel reports the same one. If that thread waits for
// a core, the loop keeps it waiting for milliseconds. Measured on two cores, in milliseconds before
// and after: 1.3 and 0.6 for a small all-reduce in two processes, 6.4 and 2.2 in four, 2.7 and 1.1
// for one of 512 KB in two. An executable's definition overrides the C library's.
//
// https://github.com/pytorch/gloo/issues/246, measured with the Gloo in LibTorch 2.11.0.
// tests/engine/mesh_test.cpp fails when Gloo no longer spins.

#include "is_off.h"

#include <sched.h>
#include <sys/epoll.h>
#include <unistd.h>

extern "C" [[gnu::visibility("default")]] int epoll_wait(int descriptor, epoll_event* events,
                                                         int most, int timeout) {
  static const bool is_off = redco::is_off(environ, "event_wait");
  if (is_off) return epoll_pwait(descriptor, events, most, timeout, nullptr);
  thread_local epoll_event last{};
  int n = epoll_pwait(descriptor, events, most, 0, nullptr);
  // Yields only for a repeated event that came without a wait: beside other programs, this thread
  // gets its core back late.
  if (n > 0 && events[0].events == last.events && events[0].data.u64 == last.data.u64)
    sched_yield();
  if (n == 0 && timeout != 0) n = epoll_pwait(descriptor, events, most, timeout, nullptr);
  last = n > 0 ? events[0] : epoll_event{};
  return n;
}
