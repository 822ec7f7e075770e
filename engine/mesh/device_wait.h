#pragma once

#include "await.h"

#include <c10/core/Device.h>
#include <c10/core/Event.h>

namespace redco {

/// The host must not block on a device where collectives are queued: one that a process never joins
/// does not end. It asks the device whether an event has happened instead, and checks for failures,
/// interrupts and the time limit meanwhile. Operators that read a device do that by themselves, on
/// threads that have started a collective on a stream (`watch_host_reads`).

/// Returns when the event has happened and no collective was aborted, so the numbers that were
/// computed before the event are right. Throws Error when a process failed or is gone or a
/// collective takes longer than its time limit, and Interrupted. It aborts the collectives then:
/// whatever is queued behind them would never end. Without collectives on streams it just waits.
REDCO_API void wait_for(const c10::Event& event);
/// The same for all that is queued on the device's current stream.
REDCO_API void wait_for_stream(c10::Device device);

/// From now on operators that make the host wait for a device, such as `item`, `nonzero` and copies
/// to the host, call `wait_for_stream` first on this thread.
void watch_host_reads();

/// The newest collective that a group has started on a stream. `wait_for` looks at all of them.
class NewestOnStream {
 public:
  NewestOnStream();
  ~NewestOnStream();
  NewestOnStream(const NewestOnStream&) = delete;
  NewestOnStream& operator=(const NewestOnStream&) = delete;

  /// Later ones on the stream end later: earlier ones, and their tensors, need not be kept.
  void set(Started collective);
  void clear() { set({}); }
};

}  // namespace redco
