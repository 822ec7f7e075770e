// torch.cuda: the GPUs visible to this process, through interfaces that LibTorch's CUDA library
// implements once it is loaded.
#include "state/arguments.h"
#include "state/confinement.h"
#include "state/object.h"
#include "state/registry.h"
#include "state/values.h"
#include "torch.h"

#include <redco/detail/cuda.h>
#include <redco/error.h>

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <memory>
#include <optional>
#include <string>

namespace redco::lua {

namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingDeviceAllocator::DeviceStats;

c10::impl::VirtualGuardImpl cuda() {
  load_cuda();
  return c10::impl::VirtualGuardImpl(c10::kCUDA);
}

// A restricted engine uses the CPU only.
int64_t count_gpus() {
  if (Confinement::current() != nullptr) return 0;
  try {
    load_cuda();
    return at::detail::getCUDAHooks().deviceCount();
  } catch (const Error&) {
    return 0;
  }
}

// Reads a GPU, given by number or as "cuda:1". The default is the current one.
c10::Device check_gpu(lua_State* L, int index) {
  c10::impl::VirtualGuardImpl guard = cuda();
  if (lua_isnoneornil(L, index)) return guard.getDevice();
  std::optional<int64_t> number = test_integer(L, index);
  if (!number && lua_type(L, index) == LUA_TSTRING) {
    auto device = parse_device(lua_tostring(L, index));
    if (device && device->is_cuda())
      number = device->has_index() ? device->index() : guard.getDevice().index();
  }
  require(number.has_value(), "torch.cuda: device: expected a number or \"cuda:0\", got ",
          described(L, index));
  require(*number >= 0 && *number < guard.deviceCount(), "torch.cuda: there is no GPU ", *number,
          "; this process sees ", int{guard.deviceCount()}, ", counted from 0");
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(*number)};
}

// Null until memory is allocated on a GPU.
c10::DeviceAllocator* allocator() {
  if (count_gpus() == 0) return nullptr;
  c10::DeviceAllocator* found = c10::getDeviceAllocator(c10::kCUDA);
  return found->initialized() ? found : nullptr;
}

int is_available(lua_State* L) {
  lua_pushboolean(L, count_gpus() > 0);
  return 1;
}

int device_count(lua_State* L) {
  push_integer(L, count_gpus());
  return 1;
}

int current_device(lua_State* L) {
  push_integer(L, cuda().getDevice().index());
  return 1;
}

int set_device(lua_State* L) {
  luaL_checkany(L, 1);
  c10::Device device = check_gpu(L, 1);
  cuda().setDevice(device);
  return 0;
}

int get_device_name(lua_State* L) {
  lua_pushstring(L, cuda_device_name(check_gpu(L, 1).index()).c_str());
  return 1;
}

int synchronize(lua_State* L) {
  c10::Device device = check_gpu(L, 1);
  at::globalContext().lazyInitDevice(c10::kCUDA);
  cuda().synchronizeDevice(device.index());
  return 0;
}

template <StatArray DeviceStats::*bytes, int64_t Stat::*value>
int memory_stat(lua_State* L) {
  int64_t result = 0;
  if (c10::DeviceAllocator* memory = allocator()) {
    DeviceStats stats = memory->getDeviceStats(check_gpu(L, 1).index());
    constexpr auto all = size_t(c10::CachingAllocator::StatType::AGGREGATE);
    result = (stats.*bytes)[all].*value;
  }
  push_integer(L, result);
  return 1;
}

int reset_peak_memory_stats(lua_State* L) {
  if (c10::DeviceAllocator* memory = allocator()) memory->resetPeakStats(check_gpu(L, 1).index());
  return 0;
}

int empty_cache(lua_State*) {
  if (c10::DeviceAllocator* memory = allocator()) memory->emptyCache();
  return 0;
}

int mem_get_info(lua_State* L) {
  c10::Device device = check_gpu(L, 1);
  at::globalContext().lazyInitDevice(c10::kCUDA);
  auto [free, total] = c10::getDeviceAllocator(c10::kCUDA)->getMemoryInfo(device.index());
  push_integer(L, int64_t(free));
  push_integer(L, int64_t(total));
  return 2;
}

// Created at the first `record`, so that a script may construct events without a GPU.
struct LuaEvent {
  static constexpr const char* lua_name = "Event";
  bool enable_timing = false;
  std::optional<c10::Event> event;
};

int new_event(lua_State* L) {
  auto made = std::make_shared<LuaEvent>();
  if (!lua_isnoneornil(L, 1)) {
    NamedArguments args(L, 1, "torch.cuda.Event");
    made->enable_timing = args.get<bool>("enable_timing", false);
    args.finish();
  }
  push_object(L, std::move(made));
  return 1;
}

int record(lua_State* L) {
  auto self = check_object<LuaEvent>(L, 1, "Event:record");
  c10::impl::VirtualGuardImpl guard = cuda();
  if (!self->event)
    self->event.emplace(c10::kCUDA, self->enable_timing ? c10::EventFlag::BACKEND_DEFAULT
                                                        : c10::EventFlag::PYTORCH_DEFAULT);
  self->event->record(guard.getStream(guard.getDevice()));
  return 0;
}

int wait_for_event(lua_State* L) {
  auto self = check_object<LuaEvent>(L, 1, "Event:synchronize");
  if (self->event) self->event->synchronize();
  return 0;
}

int query(lua_State* L) {
  auto self = check_object<LuaEvent>(L, 1, "Event:query");
  lua_pushboolean(L, !self->event || self->event->query());
  return 1;
}

int elapsed_time(lua_State* L) {
  auto start = check_object<LuaEvent>(L, 1, "Event:elapsed_time");
  auto end = check_object<LuaEvent>(L, 2, "Event:elapsed_time: end_event");
  require(start->enable_timing && end->enable_timing,
          "Event:elapsed_time: both events must be made with {enable_timing = true}");
  require(start->event && end->event, "Event:elapsed_time: the ", start->event ? "second" : "first",
          " event was never recorded");
  require(start->event->query() && end->event->query(),
          "Event:elapsed_time: the GPU has not reached both events yet; call "
          "end_event:synchronize() first");
  lua_pushnumber(L, start->event->elapsedTime(*end->event));
  return 1;
}

void add_memory(lua_State* L) {
  register_functions(
      L, "torch.cuda.",
      {{"memory_allocated", memory_stat<&DeviceStats::allocated_bytes, &Stat::current>,
        "memory_allocated(device: integer or string = nil) -> integer\n"
        "The bytes that tensors hold on a GPU; 0 without a GPU."},
       {"max_memory_allocated", memory_stat<&DeviceStats::allocated_bytes, &Stat::peak>,
        "max_memory_allocated(device: integer or string = nil) -> integer\n"
        "The most bytes that tensors held, since the start or `reset_peak_memory_stats`."},
       {"memory_reserved", memory_stat<&DeviceStats::reserved_bytes, &Stat::current>,
        "memory_reserved(device: integer or string = nil) -> integer\n"
        "The bytes that the allocator holds, for tensors and in its cache."},
       {"max_memory_reserved", memory_stat<&DeviceStats::reserved_bytes, &Stat::peak>,
        "max_memory_reserved(device: integer or string = nil) -> integer\n"
        "The most bytes that the allocator held, since the start or `reset_peak_memory_stats`."},
       {"reset_peak_memory_stats", reset_peak_memory_stats,
        "reset_peak_memory_stats(device: integer or string = nil)\n"
        "Sets the maxima to the current values, also for the metric `peak_memory_bytes`."},
       {"empty_cache", empty_cache,
        "empty_cache()\n"
        "Returns memory that no tensor uses to the driver, for other programs. Tensors that Lua "
        "has not collected still hold theirs: call collectgarbage() first."},
       {"mem_get_info", mem_get_info,
        "mem_get_info(device: integer or string = nil) -> integer, integer\n"
        "The free bytes of a GPU and all its bytes, as its driver counts them."}});
}

void add_event(lua_State* L) {
  make_object_type<LuaEvent>(
      L,
      "Event {}\n"
      "A point in a GPU's queue of work, made by `torch.cuda.Event`. A call of an operator returns "
      "before the GPU has run it; events show when it has, and how long it took.",
      {{"record", record, "record(self)\nMarks the end of all work queued so far."},
       {"synchronize", wait_for_event,
        "synchronize(self)\nWaits until the GPU reaches the event; returns at once if it was "
        "never recorded."},
       {"query", query,
        "query(self) -> boolean\nReturns whether the GPU has reached the event; true if it was "
        "never "
        "recorded."},
       {"elapsed_time", elapsed_time,
        "elapsed_time(self, end_event: Event) -> number\n"
        "The milliseconds from this event to another. Both must be made with `enable_timing` and "
        "reached: synchronize the second one first."}});
  register_functions(
      L, "torch.cuda.",
      {{"Event", new_event,
        "Event({enable_timing: boolean = false}) -> Event\n"
        "Makes an event. To time work, make two with `enable_timing`, record one "
        "before and one after it, synchronize the second and call `elapsed_time`."}});
}

}  // namespace

void add_cuda(lua_State* L) {
  lua_newtable(L);
  register_value(L, "torch.cuda",
                 "torch.cuda\n"
                 "The GPUs that this process sees, as PyTorch's module of this name. A `device` is "
                 "a GPU's number or \"cuda:1\"; without one it is the current GPU.");
  register_functions(
      L, "torch.cuda.",
      {{"is_available", is_available,
        "is_available() -> boolean\n"
        "Returns whether tensors can be on a GPU: CUDA's libraries are installed, and there "
        "is an NVIDIA GPU with its driver."},
       {"device_count", device_count,
        "device_count() -> integer\n"
        "The number of GPUs that this process sees. CUDA_VISIBLE_DEVICES limits them."},
       {"current_device", current_device,
        "current_device() -> integer\nThe number of the GPU that \"cuda\" means."},
       {"set_device", set_device,
        "set_device(device: integer or string)\n"
        "Makes \"cuda\" mean this GPU. A Deployer with device = \"cuda\" does it for its process."},
       {"get_device_name", get_device_name,
        "get_device_name(device: integer or string = nil) -> string\n"
        "NVIDIA's name of a GPU: \"NVIDIA H100 80GB HBM3\"."},
       {"synchronize", synchronize,
        "synchronize(device: integer or string = nil)\n"
        "Waits until a GPU has done all work queued so far. `item` and `tolist` wait by "
        "themselves."}});
  add_memory(L);
  add_event(L);
  lua_setfield(L, -2, "cuda");
}

}  // namespace redco::lua
