#pragma once

#include "../call/call_plan.h"

namespace redco::sharding {

/// A one-entry cache of the last redistribution, so that several products with one activation
/// gather it once, and so do the two products of a gradient.
///
/// It holds one tensor until another is redistributed, the entry is invalidated, or the source is
/// freed: autograd saves only the local part, so the gathered copy must not stay in memory for
/// long. The key is the same on all processes (the logical memory and the view of it), so all of
/// them hit or all miss.
class LastRedistribution {
 public:
  /// Whether a redistribution of `argument` may be cached: only while autograd records or runs
  /// backward, where nothing writes to the memory between two readers. Elsewhere a process could
  /// write through `to_local`, which the others would not see.
  static bool may_hold(const TensorArgument& argument);
  /// Returns the cached redistribution of `argument` to `target`; undefined on a miss.
  at::Tensor find(const TensorArgument& argument, const Placements& target) const;
  /// Caches `result`, the redistribution of `argument` to `target`, if it took a collective.
  void hold(const TensorArgument& argument, const Placements& target, const at::Tensor& result);
  /// Invalidates the entry if `local` shares its memory. Called when an operator on sharded tensors
  /// writes to `local`; the version counter detects writes through `to_local`.
  void forget(const at::Tensor& local);
  /// Frees the entry if its source no longer exists.
  void drop_unreachable() {
    if (result_.defined() && memory_.expired()) result_.reset();
  }

 private:
  /// The view of the memory, with its dimensions from outermost to innermost in memory, so that a
  /// transposed view matches.
  struct View {
    uint64_t memory_id = 0;
    Sizes order, sizes, strides;
    int64_t offset = 0;
    Placements from, to;
    at::ScalarType type;
    bool operator==(const View& other) const;
  };
  static View view_of(const TensorArgument& argument, const Placements& target);

  // The source's local storage.
  c10::weak_intrusive_ptr<c10::StorageImpl> memory_{c10::intrusive_ptr<c10::StorageImpl>()};
  int64_t version_ = 0;
  View view_;
  at::Tensor result_;  ///< its dimensions in the order of `view_`
};

/// The cache of this thread.
LastRedistribution& last_redistribution();

}  // namespace redco::sharding
