// The hooks of `fit`.

#include "../../optim/log_actions.h"
#include "fit.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace redco::train {

void Fit::call(const Hook& hook, const char* name, const std::function<Metrics()>& metrics,
               const std::vector<std::string>& ckpt_names) {
  if (!hook) return;
  auto stop = [&](const std::string& reason) {
    int64_t step = step_.state().step;
    log_action("is ended by a hook of fit after", step, "steps");
    if (!std::exchange(is_over_, true))
      deployer_.log_info(std::string("Ended by ") + name + (reason.empty() ? "" : ": " + reason),
                         "", step);
  };
  hook({.step = step_.state().step,
        .epoch_idx = run_.epoch_idx,
        .ckpt_names = ckpt_names,
        .metrics = metrics,
        .stop = stop});
}

void Fit::call_on_step() {
  int64_t step = step_.state().step;
  if (std::exchange(hooked_step_, step) == step) return;  // it was skipped
  if (running_) call(options_.on_step, "on_step", [this] { return running_->metrics.read(); });
  step_.read_custom_state();  // for a checkpoint that another thread writes
}

}  // namespace redco::train
