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
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~Blocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    sigset_t before;
  } blocked;
  return std::thread(std::move(body));
}

}  // namespace redco
