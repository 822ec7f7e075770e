// The goals that a plan can have.

#include "objective.h"

#include "../core/require_usage.h"

#include <algorithm>
#include <sstream>
#include <string>

namespace redco {

PlanObjective parse_objective(const std::string& name) {
  if (name == "time") return PlanObjective::time;
  if (name == "memory") return PlanObjective::memory;
  require_usage(name == "cost", "plan: objective \"", name,
                "\": expected \"time\", \"memory\" or \"cost\"");
  return PlanObjective::cost;
}

void parse_allowed(const std::string& names, PlanOptions& options) {
  options.tries_recompute = options.tries_dtype = false;
  if (names == "none") return;
  std::istringstream parts(names + ",");
  for (std::string name; std::getline(parts, name, ',');) {
    require_usage(name == "dtype" || name == "recompute", "plan: allow \"", name,
                  "\": expected \"recompute\", \"dtype\", both with a comma, or \"none\"");
    (name == "dtype" ? options.tries_dtype : options.tries_recompute) = true;
  }
}

void check_prices(PlanObjective objective, const ClusterSpec& cluster) {
  require_usage(
      objective != PlanObjective::cost || cluster.price(1),
      "plan: the objective \"cost\" needs the price_per_hour of all hosts; --cluster FILE "
      "can give it");
}

namespace plan {

void sort_by(PlanObjective objective, std::vector<PlannedLayout>& layouts) {
  std::stable_sort(layouts.begin(), layouts.end(), [&](const auto& a, const auto& b) {
    if (a.fits != b.fits) return a.fits;
    if (a.is_planned != b.is_planned) return a.is_planned;
    if (!a.is_planned) return a.states < b.states;
    // All layouts have the same devices, so the fastest layout is also the cheapest.
    return a.fits && objective != PlanObjective::memory ? a.seconds < b.seconds : a.total < b.total;
  });
}

void mark_least(std::vector<PlannedLayout>& layouts) {
  for (bool may_recompute : {true, false}) {
    PlannedLayout* least = nullptr;
    for (PlannedLayout& each : layouts)
      if (each.is_planned && (may_recompute || each.recompute == Recompute::none) &&
          (least == nullptr || each.total < least->total))
        least = &each;
    if (least != nullptr) least->is_least = true;
  }
}

}  // namespace plan

}  // namespace redco
