#pragma once

#include <redco/detail/coalesced.h>
#include <redco/sharding.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace redco::train {

/// Reduces the gradients of sharded leaves to the placements that the optimizer needs, in buckets,
/// overlapping with backward.
class GradientReducer {
 public:
  /// `targets`: the placements for each leaf's gradient.
  GradientReducer(std::vector<at::Tensor> leaves, std::vector<Placements> targets);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Must be called before the last backward that adds to the gradients; `finish` follows it.
  void begin();
  /// Returns when every gradient has its target placements.
  void finish();
  /// Drops collectives in progress, after backward or `finish` failed.
  void abandon();
  /// Discards the buckets: after a reconnect only some processes may have planned them.
  void forget_plan();

 private:
  class Hook;
  struct UnderWay {
    std::vector<size_t> members;
    CoalescedChange change;
  };

  void on_gradient(size_t leaf);
  /// Starts to reduce gradients over one of the mesh dimensions that split the batch, the first of
  /// which has stage 0.
  void start(const std::vector<size_t>& members, size_t stage);
  void take(UnderWay& ended);
  void plan_buckets();
  void reduce_leftovers();

  std::vector<at::Tensor> leaves_;
  std::vector<Placements> targets_;
  std::vector<Mesh::Dim> over_;  // the mesh dimensions that split the batch
  bool is_active_ = false;
  std::vector<size_t> order_;                 // the order in which gradients became ready
  std::vector<std::vector<size_t>> buckets_;  // in the order of the first step
  std::vector<size_t> bucket_of_, missing_;
  std::vector<UnderWay> under_way_;
};

}  // namespace redco::train
