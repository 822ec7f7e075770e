#pragma once

#include <redco/export.h>

#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace redco {

/// Addresses of a heap from 0 on, without its memory. A block takes the smallest free range that
/// fits, of several the lowest; ranges that touch are merged. The heap grows at its end, by no more
/// than the free range there lacks, and does not shrink.
class REDCO_API BestFitHeap {
 public:
  /// Blocks are rounded up to whole units.
  explicit BestFitHeap(int64_t unit) : unit_(unit) {}

  /// By how much the heap must grow for a block.
  int64_t growth_for(int64_t bytes) const;
  /// Returns the address of a new block.
  int64_t allocate(int64_t bytes);
  /// Frees the block at `address`, which `allocate` returned. Returns its size, in whole units.
  int64_t release(int64_t address);
  /// The size of a block of so many bytes.
  int64_t rounded_up(int64_t bytes) const;

  /// The end of the heap.
  int64_t size() const { return size_; }
  /// Bytes of the blocks.
  int64_t in_use() const { return in_use_; }
  /// Address and size of each free range.
  const std::map<int64_t, int64_t>& free_ranges() const { return free_; }

 private:
  using Ranges = std::map<int64_t, int64_t>;  // sizes by address

  // The free range at the end of the heap, if there is one.
  Ranges::const_iterator free_end() const;
  void add_free(int64_t address, int64_t size);
  void remove_free(Ranges::const_iterator range);

  int64_t unit_, size_ = 0, in_use_ = 0;
  Ranges blocks_, free_;
  std::set<std::pair<int64_t, int64_t>> by_size_;  // the free ranges: size, address
};

}  // namespace redco
