// Drives Lua's garbage collector by the memory of tensors.

#include "collector.h"

#include "context.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace redco::lua {

namespace {

// Advances the collector by `debt` / `allowance` of a cycle. A cycle walks the whole Lua heap, so
// it is spread over `allowance` bytes of new tensors.
void work_off(lua_State* L, int64_t& debt, int64_t allowance) {
  double share = double(std::exchange(debt, 0)) / double(allowance);
  double heap_kb = lua_gc(L, LUA_GCCOUNT, 0);
  lua_gc(L, LUA_GCSTEP, int(std::clamp(heap_kb * share, 1.0, 1e9)));
}

using clock = std::chrono::steady_clock;

// Returns when the collector may run again. It has run since the processor time `start` and may
// take a twentieth of the time. Time during which another thread has its core does not count.
clock::time_point pause_end(int64_t start) {
  return clock::now() + 19 * std::chrono::microseconds(processor_time() - start);
}

// A cycle of the library's own heap, 2.4 MB, takes as long as writing 7 MB. The collector takes at
// most a twentieth of the time, unless there are many bytes; then it ends a cycle.
void count_on_cpu(lua_State* L, int64_t bytes) {
  constexpr int64_t quantum = 1 << 20;
  auto& debt = context(L).tensor_debt;
  debt.cpu_new += bytes;
  if (debt.cpu_new < quantum) return;
  debt.cpu += std::exchange(debt.cpu_new, 0);
  int64_t heap = int64_t{lua_gc(L, LUA_GCCOUNT, 0)} * 1024;
  if (clock::now() < debt.cpu_pause_end && debt.cpu < std::max(32 * quantum, 6 * heap)) return;
  const int64_t start = processor_time();
  work_off(L, debt.cpu, 8 * heap);
  debt.cpu_pause_end = pause_end(start);
}

c10::Device current_gpu() { return c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice(); }

// Memory of the device, queried once because the driver is slow.
int64_t card_bytes() {
  c10::Device device = current_gpu();
  static const auto bytes =
      int64_t(c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).second);
  return bytes;
}

// Bytes of tensors on the current GPU.
int64_t card_bytes_in_use() {
  c10::Device device = current_gpu();
  auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return stats.allocated_bytes[size_t(c10::CachingAllocator::StatType::AGGREGATE)].current;
}

int64_t gpu_bytes(const Context::TensorDebt& debt) {
  return debt.planned_gpu ? debt.planned_gpu->size() : card_bytes();
}

int64_t gpu_bytes_in_use(const Context::TensorDebt& debt) {
  return debt.planned_gpu ? debt.planned_gpu->in_use() : card_bytes_in_use();
}

void collect_all(lua_State* L) {
  auto& debt = context(L).tensor_debt;
  constexpr int large_kb = 6 << 10;  // the library's own heap has 2.4 MB
  const int64_t start = processor_time();
  debt.gpu = debt.gpu_seen = 0;
  lua_gc(L, LUA_GCCOLLECT, 0);
  if (lua_gc(L, LUA_GCCOUNT, 0) > large_kb) debt.gpu_pause_end = pause_end(start);
}

// Whether garbage on a GPU can wait, since the Lua heap is large: with a million examples in tables
// a collection takes 0.2 s. While a quarter of the memory is free, the collector then takes at most
// a twentieth of the time. A plan assumes a small heap.
bool can_wait(const Context::TensorDebt& debt, int64_t memory) {
  return !debt.planned_gpu && clock::now() < debt.gpu_pause_end &&
         card_bytes_in_use() < memory / 4 * 3;
}

// A tensor may have a hundred megabytes on a GPU, and freeing it only makes the memory reusable, so
// up to 5 % of the device may be garbage. All garbage is collected at once, because the progress of
// one collector step depends on addresses and times, and a plan must count the garbage of a run.
void count_on_gpu(lua_State* L, int64_t bytes) {
  auto& debt = context(L).tensor_debt;
  const int64_t memory = gpu_bytes(debt);
  debt.gpu += bytes;
  debt.gpu_of_batch += bytes;
  if (debt.gpu < memory / 20 || debt.gpu < debt.gpu_seen + memory / 100) return;
  debt.gpu_seen = debt.gpu;
  if (!can_wait(debt, memory)) collect_all(L);
}

}  // namespace

void count_tensor_bytes(lua_State* L, c10::Device device, int64_t bytes) {
  if (device.is_cuda() || context(L).tensor_debt.planned_gpu)
    count_on_gpu(L, bytes);
  else if (device.is_cpu())
    count_on_cpu(L, bytes);
}

void collect_before_batch(lua_State* L) {
  auto& debt = context(L).tensor_debt;
  // Also counts the bytes that a collection within the last batch found in use, such as parameters
  // that were cast for the batch.
  const int64_t of_last = std::exchange(debt.gpu_of_batch, 0);
  if (of_last == 0) return;
  const int64_t memory = gpu_bytes(debt);
  if (of_last >= memory / 100 && !can_wait(debt, memory)) collect_all(L);
}

// A FreeMemoryCallback of CUDA's allocator would run too often and at the wrong time: whenever the
// cache has no block that fits, and under the allocator's lock. A finalizer that waits for a
// thread, such as one that writes a checkpoint, could then deadlock.
void collect_before_backward(lua_State* L) {
  auto& debt = context(L).tensor_debt;
  if (debt.gpu == 0) return;
  const int64_t memory = gpu_bytes(debt);
  if (debt.gpu < memory / 100) return;
  if (gpu_bytes_in_use(debt) >= memory / 2 && !can_wait(debt, memory)) collect_all(L);
}

bool is_out_of_memory(const std::exception& error) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         std::strstr(error.what(), "DefaultCPUAllocator: can't allocate memory") != nullptr ||
         std::strstr(error.what(), "DefaultCPUAllocator: not enough memory") != nullptr;
}

}  // namespace redco::lua
