// Predictor: predictions for all examples of a dataset, batch by batch.

#include <redco/predictor.h>

#include "../optim/log_actions.h"
#include "batches/batches.h"
#include "batches/lookahead.h"
#include "fit/stopping.h"
#include "params/shard_params.h"
#include "random.h"

#include "../mesh/spmd_log.h"

#include <redco/autocast.h>
#include <redco/detail/article.h>
#include <redco/detail/staged_pass.h>
#include <redco/error.h>
#include <redco/random.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/unbind.h>

#include <algorithm>

namespace redco {

using namespace mesh;
using namespace train;

namespace {

constexpr uint64_t predict_collate_stream = 1;

// One tree per example: the n-th rows of all tensors.
std::vector<Tree> split_examples(const Tree& batch_preds, int64_t n_examples) {
  std::vector<std::vector<at::Tensor>> rows(n_examples);
  for_each_leaf(batch_preds, [&](const std::string& path, const Tree& leaf) {
    std::string place = path.empty() ? "the prediction" : "'" + path + "' of the predictions";
    require(!leaf.is_none(), "Predictor: pred_fn returned nil for ", place,
            ": does it lack a `return`?");
    require(leaf.is_tensor(), "Predictor: ", place, " is ", with_article(leaf.kind()),
            ", and only tensors can be split into examples: return tensors from pred_fn or give an "
            "output_fn");
    const at::Tensor& tensor = leaf.tensor();
    require(tensor.dim() > 0 && tensor.size(0) == n_examples, "Predictor: ", place, " has shape ",
            tensor.sizes(), "; its first dimension must be the ", n_examples,
            " examples of the batch: return such a tensor from pred_fn or give an output_fn");
    auto split = tensor.unbind(0);
    for (int64_t i = 0; i < n_examples; ++i) rows[i].push_back(std::move(split[i]));
  });
  std::vector<Tree> outputs;
  outputs.reserve(n_examples);
  for (const auto& tensors : rows) outputs.push_back(with_tensors(batch_preds, tensors));
  return outputs;
}

Tree in_compute_dtype(const PredictorOptions& options, const Tree& tree) {
  return options.compute_dtype ? in_dtype(tree, *options.compute_dtype) : tree;
}

// `params` are already in compute_dtype: they are cast once for all batches.
Tree call(const PredictorOptions& options, const at::Generator& rng, const Tree& params,
          const Tree& batch) {
  c10::DeviceType device = device_of(params).type();
  Autocast region(device, options.autocast_dtype ? options.autocast_dtype : autocast_dtype(device));
  return options.pred_fn(rng, params, in_compute_dtype(options, batch));
}

LaidOut on_processes(const PredictorOptions& options, Tree params, const Dataset& examples,
                     int64_t per_device_batch_size) {
  const Deployer& deployer = *options.deployer;
  if (is_laid_out(params, deployer)) return {std::move(params), {}, nullptr};
  Tree batch =
      layout_batch(examples, per_device_batch_size, options.collate, device_of(params), deployer);
  return lay_out(params, deployer, options.params_sharding_rules, [&](const Tree& stand_ins) {
    return call(options, make_rng(0), in_compute_dtype(options, stand_ins), copied(batch));
  });
}

}  // namespace

Predictor::Predictor(PredictorOptions options) : options_(std::move(options)) {
  require(options_.deployer != nullptr, "Predictor: deployer is missing");
  require(bool(options_.pred_fn), "Predictor: pred_fn is missing");
}

std::vector<Tree> Predictor::predict(const Dataset& examples, int64_t per_device_batch_size,
                                     const Tree& params, const std::string& desc) const {
  Deployer& deployer = *options_.deployer;
  log_action("predicts", examples.size, "examples");
  int64_t batch_size = deployer.get_local_global_micro_batch_size(per_device_batch_size).second;
  std::vector<Tree> outputs;
  if (examples.size == 0) return outputs;
  outputs.reserve(examples.size);

  at::NoGradGuard no_grad;
  uint64_t key = deployer.gen_rng().current_seed();
  at::Device device = deployer.device().value_or(device_of(params));
  LaidOut laid_out =
      on_processes(options_, to_device(params, device), examples, per_device_batch_size);
  Tree computed = in_compute_dtype(options_, laid_out.params);
  std::vector<int64_t> order = index_range(0, examples.size);
  Dataset ahead = with_lookahead(examples,
                                 {.order = order,
                                  .batch_size = batch_size,
                                  .seed = derive_seed(key, {predict_collate_stream}),
                                  .collate = options_.collate},
                                 deployer.mesh());
  auto progress = deployer.run_log().progress(desc, examples.size, "examples", /*is_kept=*/false);
  StopCheck stop_check;
  for (int64_t first = 0; first < examples.size; first += batch_size) {
    check_interrupt();
    stop_check.before_batch();
    int64_t last = std::min(first + batch_size, examples.size);
    Tree batch = make_batch(ahead, std::span(order).subspan(size_t(first), size_t(last - first)),
                            options_.collate, device, deployer.mesh());
    at::Generator rng = make_rng(key);
    counter_generator(rng)->set_batch({first, last - first});
    WithRng with_rng(rng);
    LogDraws log_draws;
    StagedPass pass(deployer.mesh(), StagedPass::as_written);
    auto predicted = [&] {
      StagedPass::Running running(pass);
      return gathered(call(options_, rng, computed, batch));
    };
    Tree preds = to_device(predicted(), at::kCPU);
    pass.wait();
    std::vector<Tree> batch_outputs =
        options_.output_fn ? options_.output_fn(preds) : split_examples(preds, last - first);
    require(int64_t(batch_outputs.size()) == last - first, "Predictor: output_fn returned ",
            batch_outputs.size(), " outputs for a batch of ", last - first,
            " examples; it must return one for each, in order");
    std::move(batch_outputs.begin(), batch_outputs.end(), std::back_inserter(outputs));
    progress->advance(last - first, {});
  }
  return outputs;
}

}  // namespace redco
