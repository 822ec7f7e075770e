// Evaluation: the loss and metrics of a set of examples, without training.

#include "evaluation.h"

#include "../../optim/log_actions.h"
#include "../batches/batches.h"
#include "../batches/lookahead.h"
#include "../random.h"
#include "stopping.h"

#include <redco/detail/staged_pass.h>
#include <redco/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <span>
#include <vector>

namespace redco::train {

double eval_loss(TrainStep& step, const Dataset& examples, int64_t per_device_batch_size,
                 const std::string& desc) {
  Deployer& deployer = *step.deployer();
  check_examples("eval_loss", examples);
  log_action("evaluates the loss of", examples.size, "examples");
  step.lay_out(examples, per_device_batch_size);
  int64_t batch_size = deployer.get_local_global_micro_batch_size(per_device_batch_size).second;
  at::NoGradGuard no_grad;
  Tree params = step.computed_params();
  at::Tensor loss_sum, weight_sum;
  std::vector<int64_t> order = index_range(0, examples.size);
  Dataset ahead = with_lookahead(examples,
                                 {.order = order,
                                  .batch_size = batch_size,
                                  .seed = derive_seed(step.seed(), {uint64_t(eval_collate_stream)}),
                                  .collate = step.collate()},
                                 deployer.mesh());
  auto progress = deployer.run_log().progress(desc, examples.size, "examples", /*is_kept=*/false);
  StopCheck stop_check;
  for (int64_t first = 0; first < examples.size; first += batch_size) {
    check_interrupt();
    stop_check.before_batch();
    auto indices = std::span(order).subspan(size_t(first),
                                            size_t(std::min(batch_size, examples.size - first)));
    at::Generator rng = step.batch_rng(eval_stream, size_t(first), indices.size());
    StagedPass pass(deployer.mesh(), StagedPass::as_written);
    Loss batch = step.loss_of(step.batch_of(ahead, indices), indices.size(), params, rng,
                              /*is_training=*/false, pass);
    at::Tensor weight = batch.weight.to(at::kDouble);
    at::Tensor loss = batch.loss.to(at::kDouble) * weight;
    loss_sum = loss_sum.defined() ? loss_sum + loss : loss;
    weight_sum = weight_sum.defined() ? weight_sum + weight : weight;
    pass.wait();
    progress->advance(int64_t(indices.size()), {});
  }
  return (loss_sum / divisor(weight_sum)).item<double>();
}

EvalResults evaluate(TrainStep& step, const FitOptions& options, const std::string& desc) {
  const Dataset& examples = *options.eval_examples;
  int64_t batch_size = options.eval_per_device_batch_size.value_or(options.per_device_batch_size);
  EvalResults results;
  if (options.eval_loss) results.metrics["loss"] = eval_loss(step, examples, batch_size, desc);
  if (options.eval_metrics) {
    EvalResults found = options.eval_metrics(examples);
    results.metrics.merge(found.metrics);
    results.outputs = std::move(found.outputs);
  }
  return results;
}

std::map<std::string, double> check_evaluation(TrainStep& step, const FitOptions& options) {
  Deployer& deployer = *step.deployer();
  // The sanity check must not affect the following run, so the random state is restored.
  auto restored = c10::make_scope_exit(
      [&deployer, rng_count = deployer.rng_count()] { deployer.set_rng_count(rng_count); });
  int64_t batch_size = options.eval_per_device_batch_size.value_or(options.per_device_batch_size);
  Dataset examples = head(*options.eval_examples, batch_size);
  std::map<std::string, double> results;
  if (options.eval_loss)
    results["loss"] = eval_loss(step, examples, batch_size, "Evaluating (sanity check)");
  if (options.eval_metrics) results.merge(options.eval_metrics(examples).metrics);
  deployer.run_log().note("Evaluated one batch as a sanity check");
  return results;
}

}  // namespace redco::train
