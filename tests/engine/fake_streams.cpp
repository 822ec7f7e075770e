#include "fake_streams.h"

#include "fake_device.h"

#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>

#include <array>
#include <atomic>
#include <set>
#include <utility>

namespace fake {

namespace {

// Stops all streams while somebody wants that.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  int64_t n_paused = 0;

  static Gate& get() {
    static auto& made = *new Gate;
    return made;
  }
  void pass() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return n_paused == 0; });
  }
};

std::atomic<int64_t> blocked = 0;
thread_local c10::DeviceIndex current = 0;

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return fake::type; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {fake::type, std::exchange(current, device.index())};
  }
  c10::Device getDevice() const override { return {fake::type, current}; }
  void setDevice(c10::Device device) const override { current = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device.has_index() ? device : getDevice());
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return n_devices; }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    *static_cast<Event*>(*event) = Stream::of(stream.device()).record();
  }
  void block(void* event, const c10::Stream& stream) const override {
    Stream::of(stream.device()).wait_for(*static_cast<Event*>(event));
  }
  bool queryEvent(void* event) const override {
    return (*static_cast<Event*>(event))->has_happened();
  }
  void synchronizeEvent(void* event) const override { synchronize(*static_cast<Event*>(event)); }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  bool queryStream(const c10::Stream& stream) const override {
    return Stream::of(stream.device()).record()->has_happened();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    Stream::of(stream.device()).synchronize();
  }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    Stream::of({fake::type, index}).synchronize();
  }
};

// Memory of the host that the devices reach by themselves.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    void* data = c10::alloc_cpu(size);
    std::lock_guard lock(mutex_);
    pinned_.insert(data);
    return {data, data, &release, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t size) const override {
    default_copy_data(to, from, size);
  }
  bool has(const void* data) const {
    std::lock_guard lock(mutex_);
    return pinned_.contains(data);
  }
  static PinnedAllocator& get() {
    static auto& made = *new PinnedAllocator;
    return made;
  }

 private:
  // After the copies that are queued, as CUDA's allocator.
  static void release(void* data) {
    Stream::of({fake::type, current}).add([data] {
      PinnedAllocator& all = get();
      std::lock_guard lock(all.mutex_);
      all.pinned_.erase(data);
      c10::free_cpu(data);
    });
  }

  mutable std::mutex mutex_;
  std::set<const void*> pinned_;
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return n_devices; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  bool isPinnedPtr(const void* data) const override { return PinnedAllocator::get().has(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &PinnedAllocator::get(); }
};

c10::Device use_device(int64_t local_rank, int64_t, bool) {
  current = static_cast<c10::DeviceIndex>(local_rank % n_devices);
  return {fake::type, current};
}

}  // namespace

void Moment::happen() {
  std::lock_guard lock(mutex_);
  has_happened_ = true;
  changed_.notify_all();
}

bool Moment::has_happened() const {
  std::lock_guard lock(mutex_);
  return has_happened_;
}

void Moment::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return has_happened_; });
}

Stream::Stream() {
  std::thread([this] { run(); }).detach();
}

void Stream::add(std::function<void()> work) {
  std::lock_guard lock(mutex_);
  work_.push_back(std::move(work));
  changed_.notify_all();
}

Event Stream::record() {
  auto event = std::make_shared<Moment>();
  std::unique_lock lock(mutex_);
  work_.push_back([event] { event->happen(); });
  changed_.notify_all();
  return event;
}

void Stream::synchronize() { fake::synchronize(record()); }

Stream& Stream::of(c10::Device device) {
  static auto& streams = *new std::array<Stream, n_devices>;
  return streams.at(size_t(device.has_index() ? device.index() : current));
}

void Stream::run() {
  while (true) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !work_.empty(); });
    auto work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    Gate::get().pass();
    work();
  }
}

void synchronize(const Event& event) {
  // The stream has to be given the time to tell, on a busy machine too.
  for (int i = 0; i < 500 && !event->has_happened(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (!event->has_happened()) ++blocked;
  event->wait();
}

c10::Device current_device() { return {type, current}; }

Paused::Paused() {
  std::lock_guard lock(Gate::get().mutex);
  ++Gate::get().n_paused;
}

Paused::~Paused() {
  std::lock_guard lock(Gate::get().mutex);
  --Gate::get().n_paused;
  Gate::get().changed.notify_all();
}

int64_t n_blocked() { return blocked; }

void use_devices() {
  static bool is_done = false;
  if (std::exchange(is_done, true)) return;
  static c10::impl::DeviceGuardImplRegistrar guard(type, new Guard);
  c10::register_privateuse1_backend("fake");
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  redco::mesh::set_device_backend(type, {use_device, on_stream});
}

}  // namespace fake
