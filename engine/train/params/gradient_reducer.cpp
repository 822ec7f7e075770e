#include "gradient_reducer.h"

#include <redco/moves.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <utility>

namespace redco::train {

namespace {

// One bucket is sent while others fill. More buckets would hold the whole gradients whose memory
// ZeRO saves.
constexpr size_t most_bytes_under_way = 2 * bucket_bytes;
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
  std::shared_ptr<const Mesh> mesh = mesh_of(leaves_[0]);
  over_ = Mesh::dims_of(Mesh::data);
  std::erase_if(over_, [&](Mesh::Dim dim) { return mesh->size(dim) == 1; });
  // Dimensions that leave a part come first, so that less is sent over the others.
  std::ranges::stable_partition(over_, [](Mesh::Dim dim) { return Mesh::has(dim, Mesh::zero); });
  for (size_t i = 0; i < leaves_.size(); ++i)
    torch::autograd::impl::set_post_acc_grad_hooks(leaves_[i], std::make_unique<Hook>(*this, i));
}

GradientReducer::~GradientReducer() {
  for (at::Tensor& leaf : leaves_) torch::autograd::impl::set_post_acc_grad_hooks(leaf, nullptr);
}

void GradientReducer::begin() {
  is_active_ = true;
  if (!is_planned_) {
    buckets_.clear();
    bucket_of_.assign(leaves_.size(), no_bucket);
  }
  missing_.clear();
  for (const auto& bucket : buckets_) missing_.push_back(bucket.size());
}

void GradientReducer::on_gradient(size_t leaf) {
  if (!is_active_) return;
  if (!is_planned_) {
    plan(leaf);
  } else if (size_t bucket = bucket_of_[leaf]; --missing_[bucket] == 0) {
    start(buckets_[bucket], 0);
  }
}

// The first step makes the buckets, and later steps use them again: other buckets would round
// differently.
void GradientReducer::plan(size_t leaf) {
  size_t own = size_t(leaves_[leaf].numel()) * leaves_[leaf].element_size();
  if (buckets_.empty() || bytes_in_last_ + own > bucket_bytes) {
    if (!buckets_.empty()) start(buckets_.back(), 0);
    buckets_.emplace_back();
    bytes_in_last_ = 0;
  }
  bytes_in_last_ += own;
  bucket_of_[leaf] = buckets_.size() - 1;
  buckets_.back().push_back(leaf);
}

void GradientReducer::start(const std::vector<size_t>& members, size_t place) {
  if (place == over_.size()) return;
  Mesh::Dim dim = over_[place];
  at::NoGradGuard no_grad;
  Moving moving(Move::gradients, "reduce");
  // Partial to replicated, partial to sharded, and each dtype need separate collectives.
  std::map<std::pair<at::ScalarType, bool>, std::vector<size_t>> alike;
  for (size_t leaf : members) {
    at::Tensor& grad = leaves_[leaf].mutable_grad();
    if (!grad.defined() || !is_sharded(grad) || !placements_of(grad)[dim].is_partial()) continue;
    // If another mesh dimension splits the tensor dimension that `dim` is to split, redistribute
    // over the other one first: a later mesh dimension splits the parts that `dim` makes.
    const Placement& target = targets_[leaf][dim];
    Placements before = placements_of(grad);
    for (Mesh::Dim other : Mesh::dims)
      if (target.is_sharded() && before[other].is_sharded() && before[other].dim == target.dim)
        before[other] = other > dim ? Placement() : targets_[leaf][other];
    if (before != placements_of(grad)) grad = redistribute(grad, before);
    alike[{grad.scalar_type(), target.is_sharded()}].push_back(leaf);
  }
  for (const auto& [kind, leaves] : alike) {
    std::vector<at::Tensor> grads;
    std::vector<Placement> targets;
    size_t bytes = 0;
    for (size_t leaf : leaves) {
      grads.push_back(std::move(leaves_[leaf].mutable_grad()));
      targets.push_back(targets_[leaf][dim]);
      if (targets.back().is_sharded()) bytes += grads.back().nbytes();
    }
    under_way_.push_back({leaves, start_change(grads, targets, dim), place, bytes});
  }
  auto bytes_before_last = [&] {
    size_t bytes = 0;
    for (size_t i = 0; i + 1 < under_way_.size(); ++i) bytes += under_way_[i].bytes;
    return bytes;
  };
  while (bytes_before_last() > most_bytes_under_way) take_first();
}

void GradientReducer::take_first() {
  UnderWay first = std::move(under_way_.front());
  under_way_.pop_front();
  std::vector<at::Tensor> grads = first.change.wait();
  for (size_t i = 0; i < grads.size(); ++i) leaves_[first.members[i]].mutable_grad() = grads[i];
  start(first.members, first.place + 1);
}

void GradientReducer::finish() {
  is_active_ = false;
  if (!is_planned_) {
    // Leaves that this backward did not reach: those of other chunks of a stage, and those without
    // a gradient so far, which may get one later.
    bytes_in_last_ = bucket_bytes;
    for (size_t leaf = 0; leaf < leaves_.size(); ++leaf)
      if (bucket_of_[leaf] == no_bucket) plan(leaf);
    if (!buckets_.empty()) start(buckets_.back(), 0);
    is_planned_ = true;
  } else {
    // Start buckets with leaves that this backward did not reach.
    for (size_t bucket = 0; bucket < buckets_.size(); ++bucket)
      if (missing_[bucket] > 0) start(buckets_[bucket], 0);
  }
  // A bucket is reduced over the second mesh dimension while the next one is over the first.
  while (!under_way_.empty()) take_first();
  reduce_leftovers();
}

void GradientReducer::reduce_over_stages() {
  at::NoGradGuard no_grad;
  Moving moving(Move::gradients, "reduce");
  std::map<at::ScalarType, std::vector<size_t>> shared;
  for (size_t leaf = 0; leaf < leaves_.size(); ++leaf)
    if (targets_[leaf][Mesh::dim_of(Mesh::pipeline)].is_replicated())
      shared[leaves_[leaf].scalar_type()].push_back(leaf);
  for (const auto& [type, leaves] : shared) add_over_stages(leaves);
}

// A stage that does not use a parameter adds nothing to its gradient. The last numbers of the
// all-reduce count the stages that use each parameter.
void GradientReducer::add_over_stages(const std::vector<size_t>& leaves) {
  const std::shared_ptr<const Mesh> mesh = mesh_of(leaves_[0]);
  const auto n = int64_t(leaves.size());
  std::vector<at::Tensor> terms, uses;
  for (size_t leaf : leaves) {
    const at::Tensor& grad = leaves_[leaf].grad();
    const at::Tensor part = memory_of(view_of_part(leaves_[leaf], targets_[leaf]));
    terms.push_back(grad.defined() ? memory_of(grad) : at::zeros_like(part));
    uses.push_back(at::full({1}, double(grad.defined()), part.options()));
  }
  std::vector<at::Tensor> sent;
  for (const at::Tensor& term : terms) sent.push_back(term.reshape({-1}));
  sent.insert(sent.end(), uses.begin(), uses.end());
  at::Tensor sums =
      mesh->group(Mesh::dim_of(Mesh::pipeline)).all_reduce(at::cat(sent), ReduceOp::sum);
  // A plan assumes that all stages use them.
  const at::Tensor counts =
      sums.is_meta() ? at::ones({n}) : sums.narrow(0, sums.numel() - n, n).to(at::kDouble).cpu();
  int64_t offset = 0;
  for (int64_t i = 0; i < n; ++i) {
    const size_t leaf = leaves[size_t(i)];
    const at::Tensor& term = terms[size_t(i)];
    const at::Tensor sum =
        sums.narrow(0, std::exchange(offset, offset + term.numel()), term.numel());
    if (counts[i].item<double>() > 0)
      leaves_[leaf].mutable_grad() =
          from_local(sum.view(term.sizes()), mesh, targets_[leaf], leaves_[leaf].sizes());
  }
}

void GradientReducer::abandon() {
  is_active_ = false;
  under_way_.clear();
}

// Reduces gradients that are partial on a dimension of the model, in one collective for each dtype,
// and redistributes the others that are not at their target.
void GradientReducer::reduce_leftovers() {
  at::NoGradGuard no_grad;
  Moving moving(Move::gradients, "reduce");
  constexpr Mesh::Dim dim = Mesh::dim_of(Mesh::model);
  std::map<at::ScalarType, std::vector<size_t>> partial;
  for (size_t leaf = 0; leaf < leaves_.size(); ++leaf) {
    at::Tensor& grad = leaves_[leaf].mutable_grad();
    if (!grad.defined()) continue;
    if (!is_sharded(grad)) grad = shard(grad, mesh_of(leaves_[leaf]), {});
    if (placements_of(grad)[dim].is_partial() && targets_[leaf][dim].is_replicated())
      partial[grad.scalar_type()].push_back(leaf);
    else if (placements_of(grad) != targets_[leaf])
      grad = redistribute(grad, targets_[leaf]);
  }
  for (const auto& [type, leaves] : partial) {
    std::vector<at::Tensor> grads;
    for (size_t leaf : leaves) grads.push_back(leaves_[leaf].grad());
    grads = start_change(grads, std::vector<Placement>(grads.size()), dim).wait();
    for (size_t i = 0; i < grads.size(); ++i) {
      at::Tensor& grad = leaves_[leaves[i]].mutable_grad();
      grad = placements_of(grads[i]) == targets_[leaves[i]]
                 ? grads[i]
                 : redistribute(grads[i], targets_[leaves[i]]);
    }
  }
}

}  // namespace redco::train
