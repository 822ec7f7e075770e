#pragma once

#include "plan.h"

namespace redco::sharding {

/// What was brought to another placement last, for those who want the same next: the products of
/// one activation with several weights gather it once, and so do the two products that a gradient
/// takes part in.
///
/// No more than one tensor is held, until another is moved or it is forgotten or what it was made
/// of is gone: autograd saves the part that was, and the memory of the other must not stay taken
/// for longer than these readers need it. It is found by what is alike on all processes - which
/// memory, seen in which order -, so that all find it or none does.
class LastRedistribution {
 public:
  /// Whether what `argument` is brought to may be held: in the recorded history, where its memory
  /// is not written to between two readers. `to_local` hands out other memory, and what one process
  /// writes to that alone the others cannot know of.
  static bool may_hold(const TensorArgument& argument);
  /// `argument` brought to `target`: undefined, if that is not what is held.
  at::Tensor find(const TensorArgument& argument, const Placements& target) const;
  /// `result` is `argument` brought to `target`, by a collective.
  void hold(const TensorArgument& argument, const Placements& target, const at::Tensor& result);
  /// This is written to, by an operator on sharded tensors: those on `to_local` are noticed.
  void forget(const at::Tensor& local);
  /// Lets go of what nobody can ask for any more.
  void drop_unreachable() {
    if (result_.defined() && memory_.expired()) result_.reset();
  }

 private:
  /// A tensor's dimensions from the outermost in memory to the innermost, so that a transposed view
  /// is the same.
  struct View {
    Sizes order, sizes, strides;
    int64_t offset = 0;
    Placements from, to;
    at::ScalarType type;
    bool operator==(const View& other) const;
  };
  static View view_of(const TensorArgument& argument, const Placements& target);

  c10::weak_intrusive_ptr<c10::StorageImpl> memory_{c10::intrusive_ptr<c10::StorageImpl>()};
  int64_t version_ = 0;
  View view_;
  at::Tensor result_;  ///< its dimensions in the view's order
};

/// This thread's.
LastRedistribution& last_redistribution();

}  // namespace redco::sharding
