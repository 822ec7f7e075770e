#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

namespace redco::lua {

/// The memory of the tensors on the CPU that a restricted engine's scripts make.
class TensorMemory : public std::enable_shared_from_this<TensorMemory> {
 public:
  /// 0: no limit.
  std::atomic<size_t> limit = 0;
  std::atomic<size_t> used = 0;

  /// While it lives, what LibTorch allocates on this thread for tensors on the CPU is zeroed and
  /// counts here until it is freed, on any thread. What would exceed the limit throws
  /// c10::OutOfMemoryError. Null: nothing is counted. The first one that is not null puts an
  /// allocator before LibTorch's.
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
