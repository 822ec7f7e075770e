#pragma once

#include <redco/detail/coalesced.h>
#include <redco/sharding.h>

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <vector>

namespace redco::train {

/// Bytes of tensors that are sent together: large enough for full bandwidth, small enough that the
/// first collective starts early.
constexpr size_t bucket_bytes = size_t{25} << 20;

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
  /// After the last `finish` of a step: adds up what the stages of a pipeline have computed of the
  /// gradients of parameters that several of them use.
  void reduce_over_stages();
  /// Drops collectives in progress, after backward or `finish` failed.
  void abandon();
  /// Lets the next step plan the buckets anew: after a reconnect only some processes may have them.
  void forget_plan() { is_planned_ = false; }

 private:
  class Hook;
  struct UnderWay {
    std::vector<size_t> members;
    CoalescedChange change;
    size_t place = 0;
    size_t bytes = 0;  // that are freed when it has ended
  };

  void on_gradient(size_t leaf);
  /// Starts to reduce gradients over one of the mesh dimensions that split the batch, the first of
  /// which has place 0.
  void start(const std::vector<size_t>& members, size_t place);
  /// Waits for the first of those under way, and starts the next place of its gradients.
  void take_first();
  /// Adds a leaf to the last bucket, or starts that one and opens another.
  void plan(size_t leaf);
  void reduce_leftovers();
  void add_over_stages(const std::vector<size_t>& leaves);

  std::vector<at::Tensor> leaves_;
  std::vector<Placements> targets_;
  std::vector<Mesh::Dim> over_;  // the mesh dimensions that split the batch
  bool is_active_ = false;
  bool is_planned_ = false;
  std::vector<std::vector<size_t>> buckets_;  // in the order of the first step's gradients
  size_t bytes_in_last_ = 0;                  // of the buckets, in the first step
  std::vector<size_t> bucket_of_, missing_;
  std::deque<UnderWay> under_way_;
};

}  // namespace redco::train
