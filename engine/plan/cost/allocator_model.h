#pragma once

#include "../trace/step_log.h"

#include <array>
#include <cstdint>
#include <optional>

namespace redco::plan {

/// The memory that an allocator holds at the step's peak, in bytes.
struct AllocatorUse {
  int64_t allocated = 0;  ///< the most that was allocated at one time, as requested
  /// The parts of it. Their sum is `allocated`.
  std::array<int64_t, n_memory_kinds> kinds = {};
  int64_t reserved = 0;  ///< the most that the allocator held at one time
  /// Whether an allocation needed more than the capacity, even after all unused segments were
  /// returned. The other numbers are then those of an allocator without a limit.
  bool is_out_of_memory = false;
  int64_t n_retries = 0;  ///< how often unused segments were returned to make room

  /// Rounding, and free parts of segments.
  int64_t fragmentation() const { return reserved - allocated; }
};

/// Replays the allocations of a log through LibTorch's caching allocator on GPUs, with its default
/// settings (c10/core/AllocatorConfig.h, c10/cuda/CUDACachingAllocator.cpp). If it would exceed the
/// capacity, it first returns its unused segments. The step is repeated, because its memory becomes
/// more fragmented in the first few steps. Throws Error for a log that frees an unknown block, or
/// allocates one twice.
REDCO_API AllocatorUse replay(const StepLog& log, std::optional<int64_t> capacity = std::nullopt,
                              int64_t n_steps = 5);

}  // namespace redco::plan
