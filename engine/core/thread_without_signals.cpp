// Threads with blocked signals.

#include <redco/detail/thread_without_signals.h>

#include <c10/core/Device.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <csignal>
#include <utility>
#include <vector>

namespace redco {

namespace {

// The current devices of this thread. A new thread starts with device 0 instead of inheriting them.
std::vector<c10::Device> current_devices() {
  std::vector<c10::Device> devices;
  for (const auto& each : c10::impl::device_guard_impl_registry) {
    const c10::impl::DeviceGuardImplInterface* guard = each.load();
    if (guard == nullptr) continue;
    try {
      c10::Device current = guard->getDevice();
      if (current.index() > 0) devices.push_back(current);
    } catch (const c10::Error&) {
      // There is no driver for this device type.
    }
  }
  return devices;
}

}  // namespace

std::thread thread_without_signals(std::function<void()> body) {
  // A thread inherits the signal mask of the thread that starts it.
  struct Blocked {
    Blocked() {
      sigset_t all;
      sigfillset(&all);
      // Faults of the thread itself: they must stay unblocked, else they end the process.
      for (int each : {SIGBUS, SIGFPE, SIGILL, SIGSEGV}) sigdelset(&all, each);
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~Blocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    sigset_t before;
  } blocked;
  return std::thread([body = std::move(body), devices = current_devices()] {
    for (c10::Device each : devices) c10::impl::VirtualGuardImpl(each.type()).setDevice(each);
    body();
  });
}

}  // namespace redco
