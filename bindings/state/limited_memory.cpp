// An allocator for CPU tensors that counts the memory of restricted engines.

#include "limited_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace redco::lua {

namespace {

thread_local TensorMemory* current = nullptr;

// Counts allocations made under a TensorMemory. Earlier ones, and those of other threads, are freed
// by the first allocator.
class LimitedAllocator : public c10::Allocator {
 public:
  explicit LimitedAllocator(c10::Allocator* inner) : inner_(inner) {}

  c10::DataPtr allocate(size_t n) override {
    if (current == nullptr) return inner_->allocate(n);
    std::shared_ptr<TensorMemory> memory = current->shared_from_this();
    size_t limit = memory->limit;
    size_t used = memory->used.fetch_add(n);
    Counted counted{std::move(memory), n, {}};
    TORCH_CHECK_WITH(OutOfMemoryError, limit == 0 || (n <= limit && used <= limit - n),
                     "not enough memory: the tensors of this engine may take ", limit,
                     " bytes and take ", used, "; this one needs ", n,
                     ", see ScriptEngine::set_tensor_memory_limit");
    counted.inner = inner_->allocate(n);
    void* data = counted.inner.get();
    if (data == nullptr) return std::move(counted.inner);
    std::lock_guard lock(mutex_);
    blocks_.insert_or_assign(data, std::move(counted));
    return {data, data, release, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return release; }

  void copy_data(void* to, const void* from, size_t n) const override { std::memcpy(to, from, n); }

  static LimitedAllocator& installed() {
    static auto* allocator = [] {
      auto* made =
          new LimitedAllocator(c10::GetCPUAllocator());  // never freed: its allocations outlive all
      c10::SetCPUAllocator(made, /*priority=*/255);
      return made;
    }();
    return *allocator;
  }

 private:
  struct Counted {
    Counted(std::shared_ptr<TensorMemory> memory, size_t n, c10::DataPtr data)
        : memory(std::move(memory)), n(n), inner(std::move(data)) {}
    ~Counted() {
      if (memory) memory->used -= n;
    }
    Counted(Counted&&) = default;
    Counted& operator=(Counted&&) = default;

    std::shared_ptr<TensorMemory> memory;
    size_t n;
    c10::DataPtr inner;
  };

  static void release(void* data) {
    LimitedAllocator& self = installed();
    std::unique_lock lock(self.mutex_);
    auto found = self.blocks_.find(data);
    if (found == self.blocks_.end()) {
      lock.unlock();
      self.inner_->raw_deleter()(data);
      return;
    }
    Counted last = std::move(found->second);
    self.blocks_.erase(found);
    lock.unlock();
  }

  c10::Allocator* inner_;
  std::mutex mutex_;
  std::unordered_map<void*, Counted> blocks_;
};

}  // namespace

TensorMemory::Use::Use(TensorMemory* memory) : outer_(std::exchange(current, memory)) {
  if (memory != nullptr) LimitedAllocator::installed();
}

TensorMemory::Use::~Use() { current = outer_; }

}  // namespace redco::lua
