#pragma once

#include <redco/export.h>
#include <redco/sharding.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace redco {

/// A redistribution of several sharded tensors on one mesh dimension, in progress, by a single
/// collective.
class REDCO_API CoalescedChange {
 public:
  /// Returns the tensors, in order, in their target placements.
  std::vector<at::Tensor> wait();

 private:
  friend REDCO_API CoalescedChange start_gather(const std::vector<at::Tensor>&,
                                                std::vector<Mesh::Dim>);
  friend REDCO_API CoalescedChange start_change(const std::vector<at::Tensor>&,
                                                const std::vector<Placement>&, Mesh::Dim);
  struct Member {
    std::vector<int64_t> sizes;
    std::vector<int64_t> extents;  // sizes before the ranks of this mesh dimension split them
    Placements placements;         // before the change
    Placement target;
    std::vector<int64_t> received;  // sizes that the collective returns for one rank's part
    c10::ScalarType dtype;
  };
  std::vector<Member> members_;
  std::shared_ptr<const Mesh> mesh_;
  Mesh::Dim dim_ = {};
  std::vector<Mesh::Dim> outer_;  // dimensions to gather over afterwards, last one first
  bool is_bytes_ = false;         // whether bytes are sent, because the dtypes differ
  std::unique_ptr<Pending> pending_;
};

/// Starts to redistribute each tensor to its target on `dim`. All make the same transition, partial
/// to replicated, partial to sharded, or sharded to replicated; sums have one dtype. A dimension
/// that is split here must not be split by a later mesh dimension. The inputs are copied: their
/// memory may be freed before `wait`.
REDCO_API CoalescedChange start_change(const std::vector<at::Tensor>& tensors,
                                       const std::vector<Placement>& targets, Mesh::Dim dim);

/// Starts to gather tensors that these mesh dimensions split: in one collective for each, from the
/// last to the first. The others start in `wait`.
REDCO_API CoalescedChange start_gather(const std::vector<at::Tensor>& tensors,
                                       std::vector<Mesh::Dim> dims);

}  // namespace redco
