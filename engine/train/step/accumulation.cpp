// The gradients of a step from its micro-batches.

#include "../batches/batches.h"
#include "../params/gradient_reducer.h"
#include "backward.h"
#include "pipeline.h"
#include "train_step.h"

#include "../../mesh/spmd_log.h"

#include <redco/detail/micro_batches.h>
#include <redco/detail/recomputing.h>
#include <redco/detail/staged_pass.h>
#include <redco/error.h>
#include <redco/sharding.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <ATen/record_function.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace redco::train {

namespace {

// The parameters of a micro-batch: copies in compute_dtype, which several micro-batches use.
// Backward adds their gradients to the masters, in the dtypes of the masters.
class Copied : public torch::autograd::Function<Copied> {
 public:
  struct Copy {
    at::Tensor tensor;
  };
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& master,
                            const Copy& copy) {
    ctx->saved_data["dtype"] = master.scalar_type();
    return copy.tensor.detach();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const at::Tensor& grad = grads[0];
    return {grad.defined() ? grad.to(ctx->saved_data["dtype"].toScalarType()) : grad, {}};
  }
};

at::Tensor quotient(const at::Tensor& ratio) { return ratio[0] / divisor(ratio[1]); }

}  // namespace

// Runs the passes of the micro-batches in the order of this process's stage. The leaves accumulate
// the weighted sum of the gradients.
class TrainStep::Accumulation {
 public:
  Accumulation(TrainStep& step, const Dataset& examples, std::span<const int64_t> indices,
               int64_t micro)
      : step_(step),
        examples_(examples),
        indices_(indices),
        micro_(size_t(micro)),
        n_batches_((indices.size() + micro_ - 1) / micro_),
        mesh_(*step.deployer_->mesh()),
        n_stages_(mesh_.size(Mesh::pipeline)),
        stage_(mesh_.coordinate(Mesh::dim_of(Mesh::pipeline))),
        n_chunks_(mesh_.n_chunks_per_stage()),
        reducer_(step.params_->reducer()),
        is_reduced_each_(reducer_ && step.deployer_->zero() >= 2),
        is_weighted_(n_batches_ > 1 || step.state_.loss_scale),
        batches_(n_batches_),
        digests_(n_batches_),
        metrics_(n_batches_),
        reduced_(leaves().size()) {
    if (n_batches_ > 1) gathered_.emplace(n_batches_);
  }

  // Returns the metrics: weighted means over the micro-batches, or quotients of sums.
  std::map<std::string, at::Tensor> run() {
    auto abandon_at_error = c10::make_scope_exit([this] {
      if (reducer_) reducer_->abandon();
    });
    step_.params_->clear_gradients();
    if (gathered_ && step_.gathers_) collect();
    {
      std::optional<mesh::PausedLog> paused;  // stages call other collectives
      if (n_stages_ > 1) paused.emplace();
      for (const Turn& turn : turns_of(stage_, n_stages_, n_chunks_, n_batches_))
        turn.is_backward ? run_backward(turn) : run_forward(turn);
      if (n_stages_ > 1) join_stages();
    }
    at::NoGradGuard no_grad;
    if (!is_weighted_) return std::move(means_);
    const at::Tensor weight = divisor(weight_sum_);
    change_missing_factor(step_.params_->gradients(), missing_,
                          unit_.defined() ? weight / unit_ : weight);
    for (auto& [name, mean] : means_) mean = is_ratio(mean) ? quotient(mean) : mean / weight;
    return std::move(means_);
  }

 private:
  struct Forward {
    std::unique_ptr<StagedPass> pass;
    Loss result;
  };

  const std::vector<at::Tensor>& leaves() const { return step_.params_->leaves(); }

  Loss loss_of(size_t micro_batch, bool collects, StagedPass& pass) {
    check_interrupt();
    if (step_.before_batch_) step_.before_batch_();
    const size_t first = micro_batch * micro_;
    auto indices = indices_.subspan(first, std::min(micro_, indices_.size() - first));
    at::Generator rng = step_.batch_rng(train_stream, first, indices.size());
    if (gathered_) gathered_->begin(micro_batch, collects);
    Tree batch = batches_[micro_batch];
    if (batch.is_none()) batch = step_.batch_of(examples_, indices);
    // The calls for other chunks must not see what this one writes.
    if (n_chunks_ > 1) batch = copied(batches_[micro_batch] = std::move(batch));
    const Tree params = computed_params();
    const int64_t written = n_chunks_ > 1 ? n_writes(params) : 0;
    Loss result = step_.loss_of(batch, indices.size(), params, rng, /*is_training=*/true, pass);
    require(n_chunks_ == 1 || n_writes(params) == written,
            "loss_fn writes to a parameter that is trained, or that several stages use. With "
            "n_chunks_per_stage = ",
            n_chunks_, " it is called as often for each micro-batch: use n_chunks_per_stage = 1");
    return result;
  }

  // How often parameters were written that each call of a loss_fn would write again: all but those
  // of one stage that are not trained, such as running statistics.
  static int64_t n_writes(const Tree& params) {
    int64_t n = 0;
    for (const auto& [name, param] : named_tensors(params)) {
      const bool is_of_stage = placements_of(param)[Mesh::dim_of(Mesh::pipeline)].is_on_rank();
      if (param.requires_grad() || !is_of_stage) n += int64_t(param._version());
    }
    return n;
  }

  // Masters on the host are read over a slow link: once for all micro-batches.
  Tree computed_params() {
    if (n_batches_ == 1 || !step_.has_masters_on_host()) return step_.computed_params();
    if (copies_.empty()) {
      at::NoGradGuard no_grad;
      for (auto& [name, copy] : named_tensors(step_.computed_params()))
        copies_[name] = std::move(copy);
    }
    return map_tensors(step_.state_.params, [&](const std::string& name, const at::Tensor& master) {
      const at::Tensor& copy = copies_.at(name);
      return master.requires_grad() && !copy.is_same(master)
                 ? Copied::apply(master, Copied::Copy{copy})
                 : copy;
    });
  }

  // Runs all forward passes to collect what the loss gathers. Stages do this before their turns.
  void collect() {
    at::NoGradGuard no_grad;
    std::unique_ptr<StagedPass> before;  // whose tensors are on their way
    for (size_t i = 0; i < n_batches_; ++i) {
      auto pass = std::make_unique<StagedPass>(step_.deployer_->mesh(), StagedPass::as_written);
      loss_of(i, /*collects=*/true, *pass);
      if (before) before->wait();
      before = std::move(pass);
    }
    before->wait();
  }

  // With chunks, each forward pass runs the whole loss_fn, and computes the turn's chunk alone.
  void run_forward(const Turn& turn) {
    const size_t micro_batch = turn.micro_batch;
    std::optional<int64_t> computing;
    if (n_chunks_ > 1) computing = turn.chunk * n_stages_ + stage_;
    auto pass =
        std::make_unique<StagedPass>(step_.deployer_->mesh(), StagedPass::scheduled, computing);
    Loss result = loss_of(micro_batch, /*collects=*/false, *pass);
    if (gathered_ && gathered_->is_used()) {
      // The first step learns that the loss gathers. All stages are in their first turn.
      if (!gathered_->is_collected()) {
        step_.gathers_ = true;
        result = {};
        pass->wait();
        pass.reset();
        collect();
        return run_forward(turn);
      }
      result.weight = at::ones_like(result.weight);  // each loss is that of the whole batch
    }
    check_has_graph(result.loss);
    uint64_t& digest = digests_[micro_batch];
    require(turn.chunk == 0 || pass->digest() == digest, "loss_fn is called ", n_chunks_,
            " times for each micro-batch, as n_chunks_per_stage says, and did not do the same each "
            "time: it must not use what an earlier call has changed, and must draw from the rng "
            "that it is given");
    digest = pass->digest();
    if (turn.chunk + 1 == n_chunks_) batches_[micro_batch] = {};
    forwards_[{micro_batch, turn.chunk}] = {std::move(pass), std::move(result)};
  }

  // Gradients accumulate in the leaves: the first is taken over without a zero fill or a copy, so
  // that only one set exists. With ZeRO 2 and 3 each micro-batch's gradients are reduced to their
  // ranks at once and accumulated there.
  void run_backward(const Turn& turn) {
    auto [pass, result] = std::move(forwards_.extract({turn.micro_batch, turn.chunk}).mapped());
    const bool ends = turn.chunk == 0;  // the micro-batch, on this stage
    const bool is_last = ends && turn.micro_batch + 1 == n_batches_;
    const bool is_reduced = reducer_ && ends && (is_reduced_each_ || is_last);
    if (is_reduced) reducer_->begin();
    const at::Tensor loss = for_sums(result.loss);
    at::Tensor weight = result.weight;
    if (n_batches_ == 1) weight = at::ones_like(n_stages_ > 1 ? weight : loss);  // of all stages
    FirstGradient first_gradient(scaled(weight), result.loss.scalar_type());
    change_missing_factor(reduced_, missing_, first_gradient.rest);
    change_missing_factor(step_.params_->gradients(), missing_, first_gradient.rest);
    missing_ = first_gradient.rest;
    RECORD_USER_SCOPE("backward");
    run_conversions_early(result.loss);
    {
      StagedPass::Running running(*pass, /*is_backward=*/true);
      torch::autograd::backward({result.loss},
                                {first_gradient_of(result.loss, first_gradient.gradient)}, false,
                                false, leaves());
    }
    sent_.push_back(std::move(pass));
    if (sent_.size() > most_sent()) wait_for_first();
    if (is_reduced) reducer_->finish();
    if (ends && is_reduced_each_ && is_weighted_) add_reduced(is_last);
    result.metrics["loss"] = loss.detach();  // the sum must not keep the graph
    std::map<std::string, at::Tensor>& metrics = metrics_[turn.micro_batch];
    for (auto& [name, value] : result.metrics)
      if (at::Tensor& known = metrics[name]; !known.defined() || is_computed_here(value))
        known = value;
    if (ends) add_metrics(std::exchange(metrics, {}), weight);
  }

  // The passes whose gradients may be on their way. A stage of several chunks that waited for the
  // one before would wait for a stage that has other turns first.
  size_t most_sent() const { return n_chunks_ == 1 ? 1 : size_t(n_stages_); }

  void wait_for_first() {
    sent_.front()->wait();
    sent_.pop_front();
  }

  static bool is_computed_here(const at::Tensor& value) {
    const std::shared_ptr<const Mesh> mesh = mesh_of(value);
    return mesh && mesh->stage() && !mesh->is_absent();
  }

  // The weight of a micro-batch, times the loss scale. Weights are then divided by the first one:
  // token counts would overflow float16.
  at::Tensor scaled(const at::Tensor& weight) {
    if (!step_.state_.loss_scale) return weight;
    if (!unit_.defined()) unit_ = divisor(weight) / step_.state_.loss_scale->scale;
    return weight / unit_;
  }

  void add_reduced(bool is_last) {
    at::NoGradGuard no_grad;
    for (size_t i = 0; i < reduced_.size(); ++i) {
      at::Tensor& grad = leaves()[i].mutable_grad();
      at::Tensor& sum = reduced_[i];
      if (grad.defined()) sum = sum.defined() ? sum.add_(grad) : grad;
      grad = is_last ? sum : at::Tensor();
    }
  }

  void add_metrics(const std::map<std::string, at::Tensor>& values, const at::Tensor& weight) {
    if (!is_weighted_) {
      for (const auto& [name, value] : values)
        means_[name] = is_ratio(value) ? quotient(value) : value;
      return;
    }
    const bool is_first = means_.empty();
    for (const auto& [name, value] : values) {
      at::Tensor& sum = means_[name];
      require(is_first || sum.defined(), "loss_fn returned the metric '", name,
              "' for a later micro-batch, but not for the first one: it must return the same for "
              "all");
      const at::Tensor term = is_ratio(value) ? value : value * weight;
      sum = sum.defined() ? sum + term : term;
    }
    require(values.size() == means_.size(),
            "loss_fn did not return all metrics of the first micro-batch for a later one: it must "
            "return the same for all");
    weight_sum_ = weight_sum_.defined() ? weight_sum_ + weight : weight;
  }

  void join_stages() {
    RECORD_USER_SCOPE("join stages");
    at::NoGradGuard no_grad;
    while (!sent_.empty()) wait_for_first();
    reducer_->reduce_over_stages();
    for (auto& [name, mean] : means_) mean = full(mean);
  }

  TrainStep& step_;
  const Dataset& examples_;
  std::span<const int64_t> indices_;
  size_t micro_, n_batches_;
  const Mesh& mesh_;
  int64_t n_stages_, stage_, n_chunks_;
  GradientReducer* reducer_;
  bool is_reduced_each_, is_weighted_;
  std::optional<MicroBatches> gathered_;
  std::map<std::string, at::Tensor> copies_;  // of computed_params, by name
  std::vector<Tree> batches_;                 // of micro-batches with chunks to come
  std::vector<uint64_t> digests_;             // of what their chunks so far have called
  std::map<std::pair<size_t, int64_t>, Forward> forwards_;  // those that wait for backward
  std::deque<std::unique_ptr<StagedPass>> sent_;            // whose gradients are on their way
  std::vector<std::map<std::string, at::Tensor>> metrics_;  // of micro-batches with chunks to come
  at::Tensor unit_;                                         // of scaled weights
  at::Tensor missing_;                       // of the gradients so far: see FirstGradient::rest
  std::vector<at::Tensor> reduced_;          // the sums of add_reduced, by leaf
  std::map<std::string, at::Tensor> means_;  // sums until the last micro-batch
  at::Tensor weight_sum_;
};

std::map<std::string, at::Tensor> TrainStep::accumulate(const Dataset& examples,
                                                        std::span<const int64_t> indices,
                                                        int64_t micro) {
  BackwardOnThisThread on_this_thread;
  at::AutoGradMode with_grad(true);
  return Accumulation(*this, examples, indices, micro).run();
}

}  // namespace redco::train
