#include "collector.h"

#include "context.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace redco::lua {

namespace {

// A cycle of the collector walks the whole Lua heap. It is spread over `allowance` bytes of
// tensors, and worked for as far as `debt` goes.
void work_off(lua_State* L, int64_t& debt, int64_t allowance) {
  double share = static_cast<double>(std::exchange(debt, 0)) / static_cast<double>(allowance);
  double heap_kb = lua_gc(L, LUA_GCCOUNT, 0);
  lua_gc(L, LUA_GCSTEP, static_cast<int>(std::clamp(heap_kb * share, 1.0, 1e9)));
}

void count_on_cpu(lua_State* L, int64_t bytes) {
  constexpr int64_t quantum = 1 << 20;
  int64_t& debt = context(L).tensor_debt.cpu;
  debt += bytes;
  if (debt < quantum) return;
  // At least 8 MB, which a cache may hold, and more for a large heap: walking it must not cost more
  // than it frees.
  work_off(L, debt, std::max<int64_t>(8 * quantum, int64_t{lua_gc(L, LUA_GCCOUNT, 0)} * 1024 * 8));
}

// Of the card of `device`; asked for once, since the driver takes its time.
int64_t card_bytes(c10::Device device) {
  static const auto bytes = static_cast<int64_t>(
      c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).second);
  return bytes;
}

// One result may have a hundred megabytes there, and freeing it makes nothing faster: its memory is
// only used again. Some 5 % of the card may be garbage. LuaJIT walks two bytes for each that a step
// is given, so half of them will do.
void count_on_gpu(lua_State* L, c10::Device device, int64_t bytes) {
  auto& debt = context(L).tensor_debt;
  debt.gpu += bytes;
  debt.gpu_uncollected += bytes;
  int64_t allowance = card_bytes(device) / 20;
  if (debt.gpu >= allowance / 8) work_off(L, debt.gpu, 2 * allowance);
}

}  // namespace

void count_tensor_bytes(lua_State* L, c10::Device device, int64_t bytes) {
  if (device.is_cpu())
    count_on_cpu(L, bytes);
  else if (device.is_cuda())
    count_on_gpu(L, device, bytes);
}

// A FreeMemoryCallback of CUDA's allocator would come too often and at the wrong time: it is called
// whenever the allocator's cache has no block that fits, and under its lock. A finalizer that waits
// for a thread, such as the one that writes a checkpoint, would wait for a thread that needs it.
void collect_before_backward(lua_State* L) {
  auto& debt = context(L).tensor_debt;
  if (debt.gpu_uncollected == 0) return;
  c10::Device device = c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice();
  int64_t all = card_bytes(device);
  if (debt.gpu_uncollected < all / 100) return;
  auto stats = c10::getDeviceAllocator(c10::kCUDA)->getDeviceStats(device.index());
  constexpr auto total = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  if (stats.allocated_bytes[total].current < all / 2) return;
  debt.gpu = debt.gpu_uncollected = 0;
  lua_gc(L, LUA_GCCOLLECT, 0);
}

bool is_out_of_memory(const std::exception& error) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         std::strstr(error.what(), "DefaultCPUAllocator: can't allocate memory") != nullptr ||
         std::strstr(error.what(), "DefaultCPUAllocator: not enough memory") != nullptr;
}

}  // namespace redco::lua
