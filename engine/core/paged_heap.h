#pragma once

#include "best_fit_heap.h"

#include <redco/export.h>
#include <redco/tensor_heap.h>

#include <cstdint>
#include <set>
#include <vector>

namespace redco {

/// A BestFitHeap that knows which of its huge pages have memory. Together they never have more than
/// the pages that blocks were in at one time: before a block gets pages without memory, free pages
/// return theirs. What is free between blocks, in large ranges, then costs address space alone.
class REDCO_API PagedHeap {
 public:
  static constexpr int64_t page_bytes = int64_t{2} << 20;  ///< a huge page
  struct Block {
    int64_t address;
    /// The numbers, from 0, of free pages whose memory is to be returned before the block is used.
    std::vector<int64_t> returned;
  };

  Block allocate(int64_t bytes);
  /// Frees the block at `address`, which `allocate` returned.
  void release(int64_t address);
  /// Says that the free pages have no memory any more.
  void return_free_pages();

  const BestFitHeap& blocks() const { return blocks_; }
  /// The most memory of all pages since the last `return_free_pages`.
  int64_t most_bytes() const { return most_in_use_ * page_bytes; }

 private:
  BestFitHeap blocks_{tensor_heap_page};
  std::vector<int64_t> n_blocks_;  // in each page
  std::set<int64_t> free_;         // pages with memory but without blocks
  int64_t n_in_use_ = 0, most_in_use_ = 0;
};

}  // namespace redco
