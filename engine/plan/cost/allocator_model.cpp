// LibTorch's allocator on GPUs, simulated without memory.

#include "allocator_model.h"

#include <redco/error.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace redco::plan {

namespace {

constexpr int64_t kib = 1024, mib = 1024 * kib;

constexpr int64_t rounded_up(int64_t bytes, int64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// Blocks that cover segments of address space, with their neighbours.
class Blocks {
 public:
  using Index = int32_t;
  static constexpr Index none = -1;
  struct Block {
    int64_t address, size;
    Index before = none, after = none;
    uint8_t pool = 0;
    bool is_free = true;
  };

  Index add(int64_t address, int64_t size, uint8_t pool) {
    Index index = none;
    if (unused_.empty()) {
      index = Index(blocks_.size());
      blocks_.emplace_back();
    } else {
      index = unused_.back();
      unused_.pop_back();
    }
    blocks_[size_t(index)] = {.address = address, .size = size, .pool = pool};
    set_free(index, true);
    return index;
  }

  const Block& operator[](Index index) const { return blocks_[size_t(index)]; }

  // Returns the smallest free block of a pool that fits; of several, the one with the lowest
  // address.
  Index best_fit(uint8_t pool, int64_t size) const {
    auto found = free_.lower_bound({pool, size, std::numeric_limits<int64_t>::min(), none});
    if (found == free_.end() || std::get<0>(*found) != pool) return none;
    return std::get<3>(*found);
  }

  // Takes a free block; splits it if the rest is larger than `least_rest`.
  void take(Index index, int64_t size, int64_t least_rest) {
    set_free(index, false);
    int64_t rest = at(index).size - size;
    if (rest <= least_rest) return;
    at(index).size = size;
    Index tail = add(at(index).address + size, rest, at(index).pool);
    at(tail).before = index;
    at(tail).after = at(index).after;
    if (at(index).after != none) at(at(index).after).before = tail;
    at(index).after = tail;
  }

  // Frees a block and merges it with its free neighbours.
  void release(Index index) {
    set_free(index, true);
    if (Index after = at(index).after; after != none && at(after).is_free) merge(index, after);
    if (Index before = at(index).before; before != none && at(before).is_free) merge(before, index);
  }

  // Removes free blocks that are whole segments, from pool `from_pool` on. Returns their bytes.
  int64_t remove_free_segments(uint8_t from_pool) {
    int64_t bytes = 0;
    for (auto each = free_.lower_bound({from_pool, 0, 0, none}); each != free_.end();) {
      auto [pool, size, address, index] = *each;
      bool is_segment = at(index).before == none && at(index).after == none;
      if (is_segment) {
        bytes += size;
        unused_.push_back(index);
        each = free_.erase(each);
      } else {
        ++each;
      }
    }
    return bytes;
  }

 private:
  Block& at(Index index) { return blocks_[size_t(index)]; }

  void set_free(Index index, bool is_free) {
    Block& block = at(index);
    block.is_free = is_free;
    std::tuple key{block.pool, block.size, block.address, index};
    if (is_free)
      free_.insert(key);
    else
      free_.erase(key);
  }

  // Merges two free neighbours into the first.
  void merge(Index first, Index second) {
    set_free(first, false);
    set_free(second, false);
    at(first).size += at(second).size;
    at(first).after = at(second).after;
    if (at(second).after != none) at(at(second).after).before = first;
    unused_.push_back(second);
    set_free(first, true);
  }

  std::vector<Block> blocks_;
  std::vector<Index> unused_;
  std::set<std::tuple<uint8_t, int64_t, int64_t, Index>> free_;
};

// The memory that an allocator holds, with its limit.
struct Reserve {
  std::optional<int64_t> capacity;
  int64_t now = 0, most = 0;

  bool has_room(int64_t bytes) const { return !capacity || now + bytes <= *capacity; }
  void grow(int64_t bytes) {
    now += bytes;
    most = std::max(most, now);
  }
};

class CachingAllocator {
 public:
  // The identity of a block.
  using Place = Blocks::Index;

  explicit CachingAllocator(std::optional<int64_t> capacity) : reserve_{capacity} {}

  Place allocate(int64_t bytes) {
    constexpr int64_t unit = 512, small = mib, small_segment = 2 * mib, large_segment = 20 * mib,
                      least_own_segment = 10 * mib, segment_unit = 2 * mib;
    enum : uint8_t { small_pool, large_pool };
    int64_t size = rounded_up(std::max<int64_t>(bytes, 1), unit);
    bool is_small = size <= small;
    uint8_t pool = is_small ? small_pool : large_pool;
    Blocks::Index block = blocks_.best_fit(pool, size);
    if (block == Blocks::none) {
      int64_t segment = is_small                   ? small_segment
                        : size < least_own_segment ? large_segment
                                                   : rounded_up(size, segment_unit);
      make_room(segment, small_pool);
      reserve_.grow(segment);
      // Leaves a gap between segments, so that their blocks are never neighbours.
      block = blocks_.add(next_address_, segment, pool);
      next_address_ += 2 * segment;
    }
    // Splits off a rest of at least 512 bytes in the small pool, and of more than 1 MiB in the
    // large one.
    blocks_.take(block, size, is_small ? unit - 1 : small);
    return block;
  }

  void release(Place place) { blocks_.release(place); }

  // Adds the figures that only the allocator knows.
  void report(AllocatorUse& use) const {
    use.reserved = reserve_.most;
    use.is_out_of_memory = is_out_of_memory_;
    use.n_retries = n_retries_;
  }

 private:
  // Makes room for a segment if there is too little. Frees unused segments first, from pool
  // `from_pool` on.
  void make_room(int64_t bytes, uint8_t from_pool) {
    if (reserve_.has_room(bytes)) return;
    ++n_retries_;
    reserve_.now -= blocks_.remove_free_segments(from_pool);
    if (reserve_.has_room(bytes)) return;
    is_out_of_memory_ = true;
    reserve_.capacity.reset();
  }

  Blocks blocks_;
  Reserve reserve_;
  bool is_out_of_memory_ = false;
  int64_t n_retries_ = 0;
  int64_t next_address_ = 0;
};

// Replays a log, and can repeat its step. The blocks that a step leaves, such as gradients, are the
// blocks that the next step finds and frees.
class Replay {
 public:
  Replay(const StepLog& log, std::optional<int64_t> capacity) : log_(log), allocator_(capacity) {
    for (const Allocation& each : log.allocations)
      if (each.bytes < 0) freed_.insert(each.block);
    std::unordered_map<int64_t, std::deque<int64_t>> left;  // by size
    for (const Allocation& each : in_step())
      if (each.bytes > 0 && !freed_.contains(each.block)) left[each.bytes].push_back(each.block);
    for (const Allocation& each : before_step()) {
      auto same = left.find(each.bytes);
      if (!freed_.contains(each.block) || same == left.end() || same->second.empty()) continue;
      found_as_.emplace(same->second.front(), each.block);
      same->second.pop_front();
    }
  }

  void run(bool is_first) {
    if (is_first)
      for (const Allocation& each : before_step()) allocate(each);
    else
      for (auto [left, found] : found_as_) {
        auto block = held_.extract(left);
        block.key() = found;
        held_.insert(std::move(block));
      }
    for (const Allocation& each : in_step()) {
      if (each.bytes < 0)
        release(each, is_first);
      else if (is_first || freed_.contains(each.block) || found_as_.contains(each.block))
        allocate(each);
    }
  }

  AllocatorUse use() const {
    AllocatorUse use = most_;
    allocator_.report(use);
    return use;
  }

 private:
  struct Held {
    CachingAllocator::Place place;
    int64_t bytes;
    MemoryKind kind;
  };

  std::span<const Allocation> before_step() const {
    return std::span(log_.allocations).first(size_t(log_.n_before));
  }
  std::span<const Allocation> in_step() const {
    return std::span(log_.allocations).subspan(size_t(log_.n_before));
  }

  void allocate(const Allocation& each) {
    require(each.kind < MemoryKind::n_kinds, "block ", each.block, " of the log has no kind");
    auto [held, is_new] = held_.try_emplace(each.block, Held{0, each.bytes, each.kind});
    require(is_new, "the log allocates block ", each.block, " twice");
    if (each.bytes == 0) return;  // nothing to allocate
    held->second.place = allocator_.allocate(each.bytes);
    now_.allocated += each.bytes;
    now_.kinds[size_t(each.kind)] += each.bytes;
    if (now_.allocated > most_.allocated) most_ = now_;
  }

  void release(const Allocation& each, bool is_first) {
    auto held = held_.find(each.block);
    if (held == held_.end() && !is_first) return;  // from before the first step, and not left again
    require(held != held_.end(), "the log frees block ", each.block, ", which is not allocated");
    auto [place, bytes, kind] = held->second;
    require(bytes == -each.bytes, "the log frees ", -each.bytes, " bytes of block ", each.block,
            ", which has ", bytes);
    held_.erase(held);
    if (bytes == 0) return;
    allocator_.release(place);
    now_.allocated -= bytes;
    now_.kinds[size_t(kind)] -= bytes;
  }

  const StepLog& log_;
  CachingAllocator allocator_;
  std::unordered_set<int64_t> freed_;
  std::unordered_map<int64_t, int64_t> found_as_;  // left block -> the one that the next step finds
  std::unordered_map<int64_t, Held> held_;
  AllocatorUse now_, most_;
};

}  // namespace

AllocatorUse replay(const StepLog& log, std::optional<int64_t> capacity, int64_t n_steps) {
  Replay replay(log, capacity);
  for (int64_t step = 0; step < n_steps; ++step) replay.run(step == 0);
  return replay.use();
}

}  // namespace redco::plan
