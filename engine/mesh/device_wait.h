#pragma once

#include "await.h"

#include <c10/core/Device.h>
#include <c10/core/Event.h>

namespace redco::mesh {

/// Waits of the host for a device. The host must not block on a device with queued collectives: one
/// that a process never joins does not end. Instead it polls for an event, and checks for failures,
/// interrupts and timeouts. Operators that read from a device do so automatically, on threads that
/// have started a collective on a stream (`watch_host_reads`).

/// Returns when the event has happened and no collective was aborted, so that results computed
/// before the event are valid. Throws Error if a process failed or is gone or a collective times
/// out, and Interrupted; it then aborts the collectives, because work queued behind them would
/// never end. Without collectives on streams it just waits.
REDCO_API void wait_for(const c10::Event& event);
/// The same for all work on the device's current stream.
REDCO_API void wait_for_stream(c10::Device device);

/// From now on operators that synchronise with a device, such as `item`, `nonzero` and copies to
/// the host, first call `wait_for_stream` on this thread.
void watch_host_reads();

/// The newest collective that a group has started on a stream. `wait_for` checks all of them.
class NewestOnStream {
 public:
  NewestOnStream();
  ~NewestOnStream();
  NewestOnStream(const NewestOnStream&) = delete;
  NewestOnStream& operator=(const NewestOnStream&) = delete;

  /// Replaces the previous collective: it ends earlier, so it and its tensors need not be kept.
  void set(Started collective);
  void clear() { set({}); }
};

}  // namespace redco::mesh
