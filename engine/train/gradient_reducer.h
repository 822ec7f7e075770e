#pragma once

#include <redco/detail/coalesced.h>
#include <redco/sharding.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace redco {

/// Brings the gradients of sharded leaves from where backward leaves them to where the optimizer
/// wants them, in buckets, while backward still runs.
class GradientReducer {
 public:
  /// `targets`: of each leaf's gradient.
  GradientReducer(std::vector<at::Tensor> leaves, std::vector<Placements> targets);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// The backward that follows gives the leaves their last gradients before `finish`.
  void begin();
  /// Returns when every gradient lies at its target.
  void finish();
  /// Drops what is under way: the backward, or `finish`, failed.
  void abandon();
  /// Buckets are planned anew: processes may have got to that, or not.
  void forget_plan();

 private:
  class Hook;
  struct UnderWay {
    std::vector<size_t> members;
    CoalescedChange change;
  };

  void on_gradient(size_t leaf);
  void start(const std::vector<size_t>& members);
  void plan_buckets();
  void reduce_leftovers();

  std::vector<at::Tensor> leaves_;
  std::vector<Placements> targets_;
  bool is_active_ = false;
  std::vector<size_t> order_;                 // in which the gradients came
  std::vector<std::vector<size_t>> buckets_;  // by the order of the first step
  std::vector<size_t> bucket_of_, missing_;
  std::vector<UnderWay> under_way_;
};

}  // namespace redco
