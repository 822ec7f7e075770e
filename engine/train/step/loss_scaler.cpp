#include "loss_scaler.h"

#include <redco/error.h>
#include <redco/sharding.h>

#include <limits>

namespace redco::train {

namespace {

constexpr double backoff = 0.5, growth = 2;
constexpr int64_t growth_interval = 2000;
constexpr double smallest = 1e-4;  // as in fairseq
constexpr double largest = std::numeric_limits<float>::max();

}  // namespace

void check_loss_scale(const LossScale& loss_scale) {
  require(loss_scale.scale >= smallest && loss_scale.scale <= largest,
          "Trainer: loss_scale: scale = ", loss_scale.scale, " must be between ", smallest, " and ",
          largest);
  require(loss_scale.good_steps >= 0, "Trainer: loss_scale: good_steps = ", loss_scale.good_steps,
          " must not be negative");
}

bool accepts_step(LossScale& loss_scale, const at::Tensor& grad_norm, Group& world) {
  at::Tensor has_overflowed = full(grad_norm).isfinite().logical_not();
  if (!world.all_reduce(has_overflowed, ReduceOp::max).item<bool>()) {
    if (++loss_scale.good_steps >= growth_interval) {
      loss_scale.good_steps = 0;
      if (loss_scale.scale * growth <= largest) loss_scale.scale *= growth;
    }
    return true;
  }
  loss_scale = {.scale = loss_scale.scale * backoff, .good_steps = 0};
  require(loss_scale.scale >= smallest,
          "training: the gradients are not finite, however small the ",
          "loss is made: its scale is down at ", loss_scale.scale,
          ". Look at the batch, and for logarithms, divisions by zero and numbers above 65504 in "
          "loss_fn; or use compute_dtype = bfloat16, which has the range of float32. The "
          "parameters are those before the first of these gradients");
  return false;
}

}  // namespace redco::train
