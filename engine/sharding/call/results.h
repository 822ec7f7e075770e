// Wraps the local results of an operator as sharded tensors.

#pragma once

#include "call_plan.h"

namespace redco::sharding {

/// The logical geometry of a result, computed from its local tensor.
Geometry geometry_of(const OutputPlan& plan, const at::Tensor& local, const Mesh& mesh);

/// Whether some process holds fewer than two elements along a split dimension: then the strides of
/// its local tensor do not determine the memory order.
bool has_thin_parts(at::IntArrayRef sizes, const Placements& placements, const Mesh& mesh);

/// Within its scope, sequence parallelism does not split what a call of this thread adds up: a view
/// of a sum shares its memory.
class KeepsTerms {
 public:
  KeepsTerms();
  ~KeepsTerms();
  KeepsTerms(const KeepsTerms&) = delete;
  KeepsTerms& operator=(const KeepsTerms&) = delete;

 private:
  bool outer_;
};

/// Wraps the local results of one call as sharded tensors, in order.
class Results {
 public:
  Results(const Call& call, const CallPlan& plan) : call_(call), plan_(plan) {}

  c10::IValue wrapped(c10::IValue value);
  /// Skips a written argument, which is returned unchanged.
  void skip(const c10::IValue& written);

 private:
  at::Tensor wrapped(at::Tensor local);
  void reduce(at::Tensor& local, Placements& placements);
  void share_memory(ShardedTensorImpl& result);

  const Call& call_;
  const CallPlan& plan_;
  size_t next_ = 0;
};

}  // namespace redco::sharding
