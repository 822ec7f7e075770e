// Waits for a device, with checks for failures of queued collectives.

#include "device_wait.h"

#include <redco/error.h>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace redco::mesh {

namespace {

using std::chrono::steady_clock;

// The newest collective of each group that has one on a stream.
struct AllNewest {
  std::mutex mutex;
  std::map<const NewestOnStream*, Started> started;

  static AllNewest& get() {
    static auto& made = *new AllNewest;
    return made;
  }
};

std::vector<Started> newest_on_streams() {
  AllNewest& all = AllNewest::get();
  std::lock_guard lock(all.mutex);
  std::vector<Started> newest;
  for (const auto& [group, started] : all.started) newest.push_back(started);
  return newest;
}

// Sleeps in proportion to the time waited: briefly for short work, such as generating a token, and
// at most a millisecond.
void sleep_after(steady_clock::duration waited) {
  if (waited < std::chrono::microseconds(50)) return std::this_thread::yield();
  std::this_thread::sleep_for(
      std::min<steady_clock::duration>(waited / 8, std::chrono::milliseconds(1)));
}

void look(std::vector<Lookout>& lookouts, const std::vector<Started>& newest) {
  check_interrupt();
  const Lookout* late = nullptr;
  for (size_t i = 0; i < newest.size(); ++i) {
    // If its collective has completed, the remaining work is local and will end.
    if (newest[i].work->isCompleted()) continue;
    lookouts[i].look();
    if (lookouts[i].is_late() && (late == nullptr || late->missing().empty())) late = &lookouts[i];
  }
  if (late != nullptr) late->fail_late();
}

}  // namespace

void wait_for(const c10::Event& event) {
  const std::vector<Started> newest = newest_on_streams();
  if (newest.empty()) return event.synchronize();
  std::vector<Lookout> lookouts(newest.begin(), newest.end());
  auto from = steady_clock::now(), next_look = from + Peers::look_around;
  try {
    while (!event.query()) {
      auto now = steady_clock::now();
      if (now >= next_look) {
        look(lookouts, newest);
        next_look = now + Peers::look_around;
      }
      sleep_after(now - from);
    }
    for (const Lookout& lookout : lookouts) lookout.check_not_aborted();
  } catch (...) {
    for (const Started& each : newest)
      if (!each.work->isCompleted()) each.group->backend.abort();
    throw;
  }
}

void wait_for_stream(c10::Device device) {
  c10::Event event(device.type());
  event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  wait_for(event);
}

NewestOnStream::NewestOnStream() = default;

NewestOnStream::~NewestOnStream() { clear(); }

void NewestOnStream::set(Started collective) {
  AllNewest& all = AllNewest::get();
  std::unique_lock lock(all.mutex);
  auto node = all.started.extract(this);
  if (collective.work) all.started.emplace(this, std::move(collective));
  lock.unlock();  // the end of the former frees tensors
}

}  // namespace redco::mesh
