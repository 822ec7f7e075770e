#pragma once

#include "plan.h"

namespace redco::sharding {

/// The logical geometry of a result, given its local tensor.
Geometry geometry_of(const OutputPlan& plan, const at::Tensor& local, const Mesh& mesh);

/// Whether some process holds less than two elements along a dimension that is split: then the
/// strides of its part do not say where that dimension stands in memory.
bool has_thin_parts(at::IntArrayRef sizes, const Placements& placements, const Mesh& mesh);

/// The results of one call, wrapped one after the other.
class Results {
 public:
  Results(const Call& call, const Plan& plan) : call_(call), plan_(plan) {}

  c10::IValue wrapped(c10::IValue value);
  /// A written argument is returned as it was given.
  void skip(const c10::IValue& written);

 private:
  at::Tensor wrapped(at::Tensor local);
  void reduce(at::Tensor& local, Placements& placements);
  void share_memory(ShardedTensorImpl& result);

  const Call& call_;
  const Plan& plan_;
  size_t next_ = 0;
};

}  // namespace redco::sharding
