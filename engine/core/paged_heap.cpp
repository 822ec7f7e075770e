#include "paged_heap.h"

#include <algorithm>
#include <iterator>

namespace redco {

PagedHeap::Block PagedHeap::allocate(int64_t bytes) {
  Block block{blocks_.allocate(bytes), {}};
  const int64_t first = block.address / page_bytes;
  const int64_t last = (block.address + blocks_.rounded_up(bytes) - 1) / page_bytes;
  if (last >= int64_t(n_blocks_.size())) n_blocks_.resize(size_t(last + 1));
  int64_t n_without_memory = 0;
  for (int64_t page = first; page <= last; ++page) {
    if (n_blocks_[size_t(page)]++ > 0) continue;
    ++n_in_use_;
    if (free_.erase(page) == 0) ++n_without_memory;
  }
  most_in_use_ = std::max(most_in_use_, n_in_use_);
  // Pages at the end of the heap are the least likely to be used next.
  for (; n_without_memory > 0; --n_without_memory) {
    if (n_in_use_ + int64_t(free_.size()) <= most_in_use_) break;
    auto last_free = std::prev(free_.end());
    block.returned.push_back(*last_free);
    free_.erase(last_free);
  }
  return block;
}

void PagedHeap::release(int64_t address) {
  const int64_t size = blocks_.release(address);
  for (int64_t page = address / page_bytes; page <= (address + size - 1) / page_bytes; ++page) {
    if (--n_blocks_[size_t(page)] > 0) continue;
    --n_in_use_;
    free_.insert(page);
  }
}

void PagedHeap::return_free_pages() {
  free_.clear();
  most_in_use_ = n_in_use_;
}

}  // namespace redco
