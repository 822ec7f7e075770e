#pragma once

#include <redco/group.h>
#include <redco/trainer.h>

namespace redco::train {

/// Throws Error for a scale that is out of range.
void check_loss_scale(const LossScale& loss_scale);

/// Whether to apply the step whose unscaled gradients have this 2-norm: whether the norm is finite
/// on all processes of `world`, which all apply or all skip the step. Updates the scale by the rule
/// and with the defaults of torch.amp.GradScaler: a skipped step halves it, 2000 applied ones in a
/// row double it. Takes one collective of one number and synchronises with the device. Throws Error
/// if the scale has become so small that there must be another cause.
bool accepts_step(LossScale& loss_scale, const at::Tensor& grad_norm, Group& world);

}  // namespace redco::train
