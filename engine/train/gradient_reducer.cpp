#include "gradient_reducer.h"

#include <redco/moves.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>

namespace redco::train {

namespace {

// Large enough for full bandwidth, small enough that the first collective starts early.
constexpr size_t bucket_bytes = size_t{25} << 20;
constexpr size_t no_bucket = size_t(-1);

}  // namespace

class GradientReducer::Hook final : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(GradientReducer& reducer, size_t leaf) : reducer_(reducer), leaf_(leaf) {}
  void operator()(const at::Tensor&) override { reducer_.on_gradient(leaf_); }

 private:
  GradientReducer& reducer_;
  size_t leaf_;
};

GradientReducer::GradientReducer(std::vector<at::Tensor> leaves, std::vector<Placements> targets)
    : leaves_(std::move(leaves)), targets_(std::move(targets)) {
  for (size_t i = 0; i < leaves_.size(); ++i)
    torch::autograd::impl::set_post_acc_grad_hooks(leaves_[i], std::make_unique<Hook>(*this, i));
}

GradientReducer::~GradientReducer() {
  for (at::Tensor& leaf : leaves_) torch::autograd::impl::set_post_acc_grad_hooks(leaf, nullptr);
}

void GradientReducer::begin() {
  is_active_ = true;
  order_.clear();
  missing_.clear();
  for (const auto& bucket : buckets_) missing_.push_back(bucket.size());
}

void GradientReducer::on_gradient(size_t leaf) {
  if (!is_active_) return;
  order_.push_back(leaf);
  size_t bucket = bucket_of_.empty() ? no_bucket : bucket_of_[leaf];
  if (bucket != no_bucket && --missing_[bucket] == 0) start(buckets_[bucket]);
}

void GradientReducer::start(const std::vector<size_t>& members) {
  at::NoGradGuard no_grad;
  Moving moving(Move::gradients, "reduce");
  // Partial to replicated, partial to sharded, and each dtype need separate collectives.
  std::map<std::pair<at::ScalarType, bool>, std::vector<size_t>> alike;
  for (size_t leaf : members) {
    at::Tensor& grad = leaves_[leaf].mutable_grad();
    if (!grad.defined() || !is_sharded(grad) || !placements_of(grad)[Mesh::dp].is_partial())
      continue;
    const auto& [to_dp, to_mp] = targets_[leaf];
    auto [on_dp, on_mp] = placements_of(grad);
    // If mp splits the dimension that dp is to split, redistribute over mp first.
    if (to_dp.is_sharded() && on_mp.is_sharded() && to_dp.dim == on_mp.dim)
      grad = redistribute(grad, {on_dp, to_mp});
    alike[{grad.scalar_type(), to_dp.is_sharded()}].push_back(leaf);
  }
  for (const auto& [kind, leaves] : alike) {
    std::vector<at::Tensor> grads;
    std::vector<Placement> targets;
    for (size_t leaf : leaves) {
      grads.push_back(std::move(leaves_[leaf].mutable_grad()));
      targets.push_back(targets_[leaf][Mesh::dp]);
    }
    under_way_.push_back({leaves, start_change(std::move(grads), targets, Mesh::dp)});
  }
}

void GradientReducer::finish() {
  is_active_ = false;
  if (buckets_.empty()) plan_buckets();
  // Start buckets with leaves that this backward did not reach.
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket)
    if (missing_.size() <= bucket || missing_[bucket] > 0) start(buckets_[bucket]);
  for (UnderWay& one : under_way_) {
    std::vector<at::Tensor> grads = one.change.wait();
    for (size_t i = 0; i < grads.size(); ++i) leaves_[one.members[i]].mutable_grad() = grads[i];
  }
  under_way_.clear();
  reduce_leftovers();
}

void GradientReducer::abandon() {
  is_active_ = false;
  under_way_.clear();
}

void GradientReducer::forget_plan() {
  buckets_.clear();
  bucket_of_.clear();
}

void GradientReducer::plan_buckets() {
  bucket_of_.assign(leaves_.size(), no_bucket);
  size_t bytes = 0;
  for (size_t leaf : order_) {
    size_t own = size_t(leaves_[leaf].numel()) * leaves_[leaf].element_size();
    if (buckets_.empty() || bytes + own > bucket_bytes) {
      buckets_.emplace_back();
      bytes = 0;
    }
    bytes += own;
    bucket_of_[leaf] = buckets_.size() - 1;
    buckets_.back().push_back(leaf);
  }
  // Leaves without a gradient so far may get one later: they share the last bucket.
  std::vector<size_t> others;
  for (size_t leaf = 0; leaf < leaves_.size(); ++leaf)
    if (bucket_of_[leaf] == no_bucket) others.push_back(leaf);
  for (size_t leaf : others) bucket_of_[leaf] = buckets_.size();
  if (!others.empty()) buckets_.push_back(std::move(others));
}

// Reduces gradients that are partial on mp, in one collective for each dtype, and redistributes the
// others that are not at their target.
void GradientReducer::reduce_leftovers() {
  at::NoGradGuard no_grad;
  Moving moving(Move::gradients, "reduce");
  std::map<at::ScalarType, std::vector<size_t>> partial;
  for (size_t leaf = 0; leaf < leaves_.size(); ++leaf) {
    at::Tensor& grad = leaves_[leaf].mutable_grad();
    if (!grad.defined()) continue;
    if (!is_sharded(grad)) grad = shard(grad, mesh_of(leaves_[leaf]), {});
    if (placements_of(grad)[Mesh::mp].is_partial() && targets_[leaf][Mesh::mp].is_replicated())
      partial[grad.scalar_type()].push_back(leaf);
    else if (placements_of(grad) != targets_[leaf])
      grad = redistribute(grad, targets_[leaf]);
  }
  for (const auto& [type, leaves] : partial) {
    std::vector<at::Tensor> grads;
    for (size_t leaf : leaves) grads.push_back(leaves_[leaf].grad());
    grads = start_change(grads, std::vector<Placement>(grads.size()), Mesh::mp).wait();
    for (size_t i = 0; i < grads.size(); ++i) {
      at::Tensor& grad = leaves_[leaves[i]].mutable_grad();
      grad = placements_of(grads[i]) == targets_[leaves[i]]
                 ? grads[i]
                 : redistribute(grads[i], targets_[leaves[i]]);
    }
  }
}

}  // namespace redco::train
