#include "thread_without_signals.h"

#include <csignal>
#include <utility>

namespace redco {

std::thread thread_without_signals(std::function<void()> body) {
  // A thread begins with what is blocked where it is started.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace redco
