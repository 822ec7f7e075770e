#include "paged_heap.h"

#include <redco/detail/free_memory.h>
#include <redco/error.h>
#include <redco/tensor_heap.h>

#include <c10/core/CPUAllocator.h>

#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <mutex>

// Of gperftools' malloc_extension_c.h; null unless the program uses its malloc.
extern "C" [[gnu::weak]] void MallocExtension_ReleaseFreeMemory();

namespace redco {

namespace {

// Reserves address space once, so that the heap is one range. Pages become usable as the heap
// grows; as with malloc, the system refuses memory that it does not have.
class TensorHeap final : public c10::Allocator {
 public:
  TensorHeap() {
    capacity_ = 4 * int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
    void* start = mmap(nullptr, size_t(capacity_ + PagedHeap::page_bytes), PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) {
      capacity_ = 0;
      return;
    }
    start_ = static_cast<char*>(start);
    start_ += -reinterpret_cast<uintptr_t>(start) % PagedHeap::page_bytes;
    // Training is up to 5 % faster with huge pages.
    madvise(start_, size_t(capacity_), MADV_HUGEPAGE);
  }

  c10::DataPtr allocate(size_t bytes) override {
    void* data = int64_t(bytes) > tensor_heap_threshold ? take(int64_t(bytes)) : nullptr;
    if (data == nullptr)
      data = malloc_.raw_allocate(bytes);
    else
      c10::profiledCPUMemoryReporter().New(data, bytes);
    return {data, data, raw_deleter(), c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override;

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  void release(void* data) {
    const int64_t address = static_cast<char*>(data) - start_;
    if (start_ == nullptr || address < 0 || address >= capacity_)
      return malloc_.raw_deallocate(data);
    c10::profiledCPUMemoryReporter().Delete(data);
    std::lock_guard lock(mutex_);
    heap_.release(address);
  }

  void return_free_pages() {
    std::lock_guard lock(mutex_);
    for (auto [address, size] : heap_.blocks().free_ranges())
      madvise(start_ + address, size_t(size), MADV_DONTNEED);
    heap_.return_free_pages();
  }

  int64_t in_use() {
    std::lock_guard lock(mutex_);
    return heap_.blocks().in_use();
  }

  std::mutex& mutex() { return mutex_; }

 private:
  // Null if there is no room.
  void* take(int64_t bytes) {
    constexpr int64_t page = PagedHeap::page_bytes;
    std::lock_guard lock(mutex_);
    int64_t more = heap_.blocks().size() + heap_.blocks().growth_for(bytes) - usable_;
    if (more > 0) {
      more = (more + page - 1) / page * page;
      if (more > capacity_ - usable_ ||
          mprotect(start_ + usable_, size_t(more), PROT_READ | PROT_WRITE) != 0)
        return nullptr;
      usable_ += more;
    }
    PagedHeap::Block block = heap_.allocate(bytes);
    for (int64_t number : block.returned)
      madvise(start_ + number * page, size_t(page), MADV_DONTNEED);
    return start_ + block.address;
  }

  std::mutex mutex_;
  PagedHeap heap_;
  c10::Allocator& malloc_ = *c10::GetDefaultCPUAllocator();
  char* start_ = nullptr;
  int64_t capacity_ = 0, usable_ = 0;
};

// Null until it is used; never deleted, because tensors may outlive all static objects.
TensorHeap* heap = nullptr;

void release(void* data) {
  if (data != nullptr) heap->release(data);
}

c10::DeleterFnPtr TensorHeap::raw_deleter() const { return &redco::release; }

}  // namespace

void use_tensor_heap() {
  if (heap != nullptr) return;
  heap = new TensorHeap;
  // A child process has only the thread that forked. It must not inherit a lock that another thread
  // holds.
  pthread_atfork([] { heap->mutex().lock(); }, [] { heap->mutex().unlock(); },
                 [] { heap->mutex().unlock(); });
  c10::SetAllocator(c10::kCPU, heap);
}

int64_t tensor_heap_bytes() { return heap == nullptr ? 0 : heap->in_use(); }

void return_free_memory() {
  malloc_trim(0);
  if (MallocExtension_ReleaseFreeMemory != nullptr) MallocExtension_ReleaseFreeMemory();
  if (heap != nullptr) heap->return_free_pages();
}

}  // namespace redco
