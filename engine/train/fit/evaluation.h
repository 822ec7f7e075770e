#pragma once

#include "../step/train_step.h"

#include <redco/dataset.h>
#include <redco/trainer.h>

#include <cstdint>
#include <map>
#include <string>

namespace redco::train {

/// See Trainer::eval_loss.
double eval_loss(TrainStep& step, const Dataset& examples, int64_t per_device_batch_size,
                 const std::string& desc);

/// Evaluates as the options of `fit` say.
EvalResults evaluate(TrainStep& step, const FitOptions& options, const std::string& desc);

/// Evaluates one batch, so that errors show before training. Returns its metrics.
std::map<std::string, double> check_evaluation(TrainStep& step, const FitOptions& options);

}  // namespace redco::train
