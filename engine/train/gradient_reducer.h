#pragma once

#include <redco/detail/coalesced.h>
#include <redco/sharding.h>

#include <ATen/core/Tensor.h>

#include <deque>
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
  /// Plans the buckets as before the first step: after a reconnect only some processes may know the
  /// order of the gradients.
  void forget_order();

 private:
  class Hook;
  struct UnderWay {
    std::vector<size_t> members;
    CoalescedChange change;
    size_t stage = 0;
    size_t bytes = 0;  // that are freed when it has ended
  };

  void on_gradient(size_t leaf);
  /// Starts to reduce gradients over one of the mesh dimensions that split the batch, the first of
  /// which has stage 0.
  void start(const std::vector<size_t>& members, size_t stage);
  /// Waits for the first of those under way, and starts the next stage of its gradients.
  void take_first();
  void plan_buckets(const std::vector<size_t>& order);
  void reduce_leftovers();

  std::vector<at::Tensor> leaves_;
  std::vector<Placements> targets_;
  std::vector<Mesh::Dim> over_;  // the mesh dimensions that split the batch
  bool is_active_ = false;
  bool is_order_known_ = false;
  std::vector<size_t> order_;  // the order in which gradients became ready
  std::vector<std::vector<size_t>> buckets_;
  std::vector<size_t> bucket_of_, missing_;
  std::deque<UnderWay> under_way_;
};

}  // namespace redco::train
