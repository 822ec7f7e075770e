#pragma once

#include <redco/dataset.h>
#include <redco/deployer.h>
#include <redco/export.h>
#include <redco/sharding_rules.h>
#include <redco/tree.h>

#include <ATen/core/Generator.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace redco {

/// A batch's predictions, on the parameters' device; gradients are off. `rng` is as a
/// loss_fn's: an example gets the same numbers in batches of any size.
using PredFn = std::function<Tree(at::Generator rng, const Tree& params, const Tree& batch)>;

/// A batch's predictions, on the CPU, to one tree per example.
using OutputFn = std::function<std::vector<Tree>(const Tree& batch_preds)>;

struct PredictorOptions {
  std::shared_ptr<Deployer> deployer;
  PredFn pred_fn;
  /// Empty: every tensor is split along its first dimension, which must be the examples'.
  OutputFn output_fn = {};
  Collate collate = Collate::global;
  /// What floating-point parameters and tensors of a batch are cast to for pred_fn; none: they stay
  /// as they are.
  std::optional<at::ScalarType> compute_dtype = std::nullopt;
  /// pred_fn runs under Autocast of this type; none: autocast is as it is for the caller.
  std::optional<at::ScalarType> autocast_dtype = std::nullopt;
  /// As a Trainer's, for parameters that are not laid out yet.
  std::vector<ShardingRule> params_sharding_rules = {};
};

struct LaidOut;

class REDCO_API Predictor {
 public:
  explicit Predictor(PredictorOptions options);

  /// One prediction per example, in the order of the examples; none for no examples. Parameters
  /// that are not laid out over the processes are, by what pred_fn does with them, for this call:
  /// those of a Trainer's state are. Throws Error when a batch gives another number of outputs than
  /// it has examples.
  std::vector<Tree> predict(const Dataset& examples, int64_t per_device_batch_size,
                            const Tree& params, const std::string& desc = "Predicting") const;

 private:
  Tree in_compute_dtype(const Tree& tree) const;
  Tree call(const at::Generator& rng, const Tree& params, const Tree& batch) const;
  LaidOut on_processes(Tree params, const Dataset& examples, int64_t per_device_batch_size) const;

  PredictorOptions options_;
};

}  // namespace redco
