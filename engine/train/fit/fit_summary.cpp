// The lines that `fit` logs at its end.

#include "fit.h"

#include <redco/run_log.h>

#include <sstream>

namespace redco::train {

// The best values of the last evaluation's metrics: `accuracy 0.97 (epoch 16), loss 0.1 (epoch 9)`.
std::string Fit::best_metrics() const {
  std::string text;
  for (const auto& [metric, last] : run_.metrics)
    for (const auto& [kind, best] :
         {std::pair("min_", &run_.min_metrics), std::pair("max_", &run_.max_metrics)}) {
      auto found = best->find(metric);
      if (found == best->end()) continue;
      text += (text.empty() ? "" : ", ") + metric + " " + format_metric(found->second);
      auto place = run_.best_places.find(kind + metric);
      if (place != run_.best_places.end()) text += " (" + place->second + ")";
    }
  return text;
}

void Fit::log_summary() {
  int64_t n_steps = step_.state().step - done_.first_step;
  std::chrono::duration<double> time = std::chrono::steady_clock::now() - done_.start;
  std::ostringstream text;
  if (n_steps > 0) {
    text << "Trained " << n_steps << (n_steps == 1 ? " step" : " steps");
    if (done_.n_epochs > 0)
      text << " (" << done_.n_epochs << (done_.n_epochs == 1 ? " epoch)" : " epochs)");
    text << " in " << format_duration(time.count()) << ", "
         << format_rate(double(done_.n_examples) / done_.in_epochs.count()) << " examples/s";
  } else {
    text << "Nothing left to train at step " << step_.state().step;
  }
  std::string best = best_metrics();
  if (!best.empty()) text << "; best: " << best;
  deployer_.log_info(text.str());

  if (n_unlogged_ > 0)
    deployer_.log_info("Metrics or results of the run were lost " + std::to_string(n_unlogged_) +
                       (n_unlogged_ == 1 ? " time" : " times") +
                       ", because they could not be written");
  const std::string& workdir = deployer_.workdir();
  if (workdir.empty()) return;
  std::string files;
  auto add = [&](const std::string& name) {
    files += (files.empty() ? "Checkpoints: " : ", ") + workdir + "/ckpts/" + name;
  };
  for (const std::string& metric : options_.save_argmin_ckpt_by_metrics) add("min_" + metric);
  for (const std::string& metric : options_.save_argmax_ckpt_by_metrics) add("max_" + metric);
  if (!last_saved_.starts_with("min_") && !last_saved_.starts_with("max_") && !last_saved_.empty())
    add(last_saved_);
  deployer_.run_log().info_if_new((files.empty() ? "" : files + ". ") +
                                  "To draw the curves: redco-lua plot " + workdir);
}

}  // namespace redco::train
