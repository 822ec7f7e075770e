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

/// Computes the predictions for a batch, on the parameters' device, without gradients. `rng` is as
/// for a loss_fn: an example gets the same random numbers in batches of any size.
using PredFn = std::function<Tree(at::Generator rng, const Tree& params, const Tree& batch)>;

/// Splits a batch's predictions, on the CPU, into one tree per example.
using OutputFn = std::function<std::vector<Tree>(const Tree& batch_preds)>;

struct PredictorOptions {
  std::shared_ptr<Deployer> deployer;
  PredFn pred_fn;
  /// Empty: every tensor is split along its first dimension, which must be that of the examples.
  OutputFn output_fn = {};
  Collate collate = Collate::global;
  /// The dtype to which floating-point parameters and batch tensors are cast for pred_fn; none: no
  /// cast.
  std::optional<at::ScalarType> compute_dtype = std::nullopt;
  /// pred_fn runs under Autocast with this dtype; none: the caller's autocast applies.
  std::optional<at::ScalarType> autocast_dtype = std::nullopt;
  /// As for a Trainer; used for parameters without a layout.
  std::vector<ShardingRule> params_sharding_rules = {};
};

class REDCO_API Predictor {
 public:
  explicit Predictor(PredictorOptions options);

  /// Returns one prediction per example, in order; an empty list if there are no examples.
  /// Parameters that are not laid out over the processes get a layout for this call, from the way
  /// pred_fn uses them; a Trainer's parameters already have one. Throws Error if the number of
  /// outputs of a batch differs from its number of examples.
  std::vector<Tree> predict(const Dataset& examples, int64_t per_device_batch_size,
                            const Tree& params, const std::string& desc = "Predicting") const;

 private:
  PredictorOptions options_;
};

}  // namespace redco
