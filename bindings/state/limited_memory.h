#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

namespace redco::lua {

/// Counts and limits the memory of CPU tensors created by the scripts of a restricted engine.
class TensorMemory : public std::enable_shared_from_this<TensorMemory> {
 public:
  /// 0: no limit.
  std::atomic<size_t> limit = 0;
  std::atomic<size_t> used = 0;

  /// While it exists, LibTorch's allocations for CPU tensors on this thread are counted until
  /// they are freed, on any thread. An allocation that would exceed the limit throws
  /// c10::OutOfMemoryError. Null: nothing is counted. The first Use that is not null installs an
  /// allocator in front of LibTorch's.
  class Use {
   public:
    explicit Use(TensorMemory* memory);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    TensorMemory* outer_;
  };
};

}  // namespace redco::lua
