#pragma once

#include <redco/group.h>
#include <redco/trainer.h>

namespace redco {

/// Throws Error for a scale to which no rule leads.
void check_loss_scale(const LossScale& loss_scale);

/// Whether to do the step whose gradients, divided by the scale, have this 2-norm: whether it is
/// finite on all processes of `world`, which then all do the step or all leave it out. Moves the
/// scale on by the rule and with the defaults of torch.amp.GradScaler: a step that is left out
/// halves it, 2000 good ones in a row double it. One collective of one number, and a wait for the
/// device. Throws Error when the scale has fallen so far that there must be another cause.
bool accepts_step(LossScale& loss_scale, const at::Tensor& grad_norm, Group& world);

}  // namespace redco
