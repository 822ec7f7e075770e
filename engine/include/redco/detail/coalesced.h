#pragma once

#include <redco/export.h>
#include <redco/sharding.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace redco {

/// Many sharded tensors on their way to other placements on one mesh dimension, by one collective.
class REDCO_API CoalescedChange {
 public:
  /// The tensors, in their order, in the placements they were to have.
  std::vector<at::Tensor> wait();

 private:
  friend REDCO_API CoalescedChange start_change(std::vector<at::Tensor>,
                                                const std::vector<Placement>&, Mesh::Dim);
  std::vector<at::Tensor> tensors_;
  std::vector<Placement> targets_;
  Mesh::Dim dim_ = Mesh::dp;
  std::unique_ptr<Pending> pending_;
};

/// Starts to bring each tensor to its target on `dim`. All are of one type, and all change alike:
/// from sums to whole, from sums to parts, or from parts to whole. A dimension that is split here
/// must not be split by the other mesh dimension. What was given may not be changed before `wait`.
REDCO_API CoalescedChange start_change(std::vector<at::Tensor> tensors,
                                       const std::vector<Placement>& targets, Mesh::Dim dim);

}  // namespace redco
