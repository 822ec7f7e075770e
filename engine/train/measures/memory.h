#pragma once

#include "../step/train_step.h"

#include <redco/trainer.h>

namespace redco::train {

/// See Trainer::memory.
TrainerMemory trainer_memory(const TrainStep& step);

}  // namespace redco::train
