#include "best_fit_heap.h"

#include <redco/error.h>

#include <algorithm>
#include <iterator>

namespace redco {

void BestFitHeap::add_free(int64_t address, int64_t size) {
  free_.emplace(address, size);
  by_size_.emplace(size, address);
}

void BestFitHeap::remove_free(Ranges::const_iterator range) {
  by_size_.erase({range->second, range->first});
  free_.erase(range);
}

int64_t BestFitHeap::rounded_up(int64_t bytes) const {
  return (std::max<int64_t>(bytes, 1) + unit_ - 1) / unit_ * unit_;
}

BestFitHeap::Ranges::const_iterator BestFitHeap::free_end() const {
  if (free_.empty()) return free_.end();
  auto last = std::prev(free_.end());
  return last->first + last->second == size_ ? last : free_.end();
}

int64_t BestFitHeap::growth_for(int64_t bytes) const {
  const int64_t size = rounded_up(bytes);
  if (by_size_.lower_bound({size, 0}) != by_size_.end()) return 0;
  auto end = free_end();
  return end == free_.end() ? size : size - end->second;
}

int64_t BestFitHeap::allocate(int64_t bytes) {
  const int64_t size = rounded_up(bytes);
  auto fit = by_size_.lower_bound({size, 0});
  auto range = fit == by_size_.end() ? free_end() : free_.find(fit->second);
  int64_t address = size_;
  if (range != free_.end()) {
    const int64_t rest = range->second - size;
    address = range->first;
    remove_free(range);
    if (rest > 0) add_free(address + size, rest);
  }
  size_ = std::max(size_, address + size);
  blocks_.emplace(address, size);
  in_use_ += size;
  return address;
}

int64_t BestFitHeap::release(int64_t address) {
  auto block = blocks_.find(address);
  require(block != blocks_.end(), "no block of the heap is at ", address);
  const int64_t freed = block->second;
  int64_t size = freed;
  blocks_.erase(block);
  in_use_ -= size;
  auto after = free_.lower_bound(address);
  if (after != free_.begin()) {
    auto before = std::prev(after);
    if (before->first + before->second == address) {
      address = before->first;
      size += before->second;
      remove_free(before);
    }
  }
  if (after != free_.end() && after->first == address + size) {
    size += after->second;
    remove_free(after);
  }
  add_free(address, size);
  return freed;
}

}  // namespace redco
