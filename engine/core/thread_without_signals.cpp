#include <redco/thread_without_signals.h>

#include <csignal>
#include <utility>

namespace redco {

std::thread thread_without_signals(std::function<void()> body) {
  // A thread begins with what is blocked where it is started.
  struct Blocked {
    Blocked() {
      sigset_t all;
      sigfillset(&all);
      // The thread's own faults, which end the process if they are blocked.
      for (int each : {SIGBUS, SIGFPE, SIGILL, SIGSEGV}) sigdelset(&all, each);
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~Blocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    sigset_t before;
  } blocked;
  return std::thread(std::move(body));
}

}  // namespace redco
