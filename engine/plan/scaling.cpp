// How the speed changes with the number of devices.

#include "cluster/units.h"

#include "../core/require_usage.h"

#include <redco/error.h>
#include <redco/plan_scaling.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <utility>

namespace redco {

using namespace plan;

std::vector<ScalingPoint> scaling_curve(
    const std::vector<int64_t>& n_devices, Scaling scaling, int64_t global_batch_size,
    const std::function<PlannedLayout(int64_t n_devices, int64_t global_batch_size)>& plan) {
  std::vector<ScalingPoint> curve;
  double first_rate = 0;
  for (int64_t n : n_devices) {
    ScalingPoint point{.n_devices = n, .global_batch_size = global_batch_size};
    if (scaling == Scaling::weak) {
      int64_t first = n_devices.front();
      require_usage(global_batch_size * n % first == 0, "--scaling weak: a global batch of ",
                    global_batch_size, " on ", first, " devices is not a whole number on ", n);
      point.global_batch_size = global_batch_size * n / first;
    }
    point.layout = plan(n, point.global_batch_size);
    if (point.layout.fits && point.layout.seconds > 0) {
      point.examples_per_second = double(point.global_batch_size) / point.layout.seconds;
      double rate = point.examples_per_second / double(n);
      if (first_rate == 0) first_rate = rate;
      point.efficiency = rate / first_rate;
    }
    curve.push_back(std::move(point));
  }
  return curve;
}

std::vector<ScalingPoint> plan_scaling(const TrainerOptions& trainer, const Dataset& examples,
                                       const ClusterSpec& cluster,
                                       const std::vector<int64_t>& n_devices, Scaling scaling,
                                       const PlanOptions& options) {
  require(!n_devices.empty(), "plan: there are no numbers of devices");
  PlanOptions of_each = options;
  of_each.timeout = options.timeout / double(n_devices.size());
  of_each.n_layouts = 1;
  int64_t per_device = options.per_device_batch_size * trainer.accumulate_grad_batches.value_or(1);
  int64_t global = options.global_batch_size.value_or(
      per_device * n_devices.front() /
      (options.n_model_shards * options.n_context_shards * options.n_pipeline_stages));
  return scaling_curve(n_devices, scaling, global, [&](int64_t n, int64_t batch) -> PlannedLayout {
    of_each.global_batch_size = batch;
    try {
      return plan_step(trainer, examples, cluster.with_devices(n), of_each).layouts.front();
    } catch (const Interrupted&) {
      throw;
    } catch (const Error& error) {  // such as a number that does not fill hosts
      return {.why = error.what()};
    }
  });
}

namespace {

// Device-seconds of an example by part of the step: computing, and waiting for each group.
std::map<std::string, double> parts_of(const ScalingPoint& point) {
  const PlannedLayout& layout = point.layout;
  double factor = double(point.n_devices) / double(point.global_batch_size);
  std::map<std::string, double> parts{{"", (layout.seconds - layout.exposed_seconds) * factor}};
  for (const auto& [group, seconds] : layout.exposed) parts[group] = seconds * factor;
  return parts;
}

std::string percent(double share) { return std::to_string(std::lround(100 * share)) + " %"; }

// "8 x 4, zero = 3, 2 at a time"
std::string layout_text(const PlannedLayout& layout) {
  std::ostringstream text;
  text << layout.n_copies << " x " << layout.n_model_shards;
  if (layout.n_context_shards > 1) text << " x " << layout.n_context_shards;
  if (layout.n_expert_shards > 1) text << ", n_expert_shards = " << layout.n_expert_shards;
  if (layout.n_pipeline_stages > 1) text << ", n_pipeline_stages = " << layout.n_pipeline_stages;
  if (layout.n_chunks_per_stage > 1) text << ", n_chunks_per_stage = " << layout.n_chunks_per_stage;
  text << ", zero = " << layout.zero << ", " << layout.per_device_batch_size << " at a time";
  if (layout.recompute != Recompute::none) text << ", recompute " << name_of(layout.recompute);
  return text.str();
}

}  // namespace

std::string bend_of(const std::vector<ScalingPoint>& curve) {
  const ScalingPoint *before = nullptr, *from = nullptr, *to = nullptr;
  double least = 0.98;
  for (const ScalingPoint& point : curve) {
    if (point.efficiency == 0) continue;
    if (before != nullptr && point.efficiency / before->efficiency < least) {
      least = point.efficiency / before->efficiency;
      from = before;
      to = &point;
    }
    before = &point;
  }
  if (to == nullptr) return "";
  auto was = parts_of(*from), is = parts_of(*to);
  std::string grown;
  double most = 0;
  for (const auto& [part, seconds] : is)
    if (seconds - was[part] > most) most = seconds - was[part], grown = part;
  std::ostringstream text;
  text << "from " << from->n_devices << " to " << to->n_devices << " devices each does "
       << percent(1 - least) << " less: ";
  if (grown.empty()) {
    text << "its work on an example takes longer (" << layout_text(from->layout) << ", then "
         << layout_text(to->layout) << ")";
  } else {
    auto share = [&](const PlannedLayout& layout) {
      auto found = layout.exposed.find(grown);
      return found == layout.exposed.end() ? 0 : found->second / layout.seconds;
    };
    text << "it waits for " << grown << " in " << percent(share(to->layout)) << " of the step, "
         << percent(share(from->layout)) << " before";
  }
  return text.str();
}

std::vector<int64_t> parse_device_numbers(const std::string& text) {
  constexpr int64_t most = 10'000'000, most_numbers = 1000;
  const std::string where = "--devices " + text + ": ";
  std::vector<int64_t> numbers;
  auto add = [&](int64_t number) {
    require_usage(numbers.empty() || number > numbers.back(), where, "the numbers must ascend");
    require_usage(int64_t(numbers.size()) < most_numbers, where, "these are over ", most_numbers,
                  " numbers");
    numbers.push_back(number);
  };
  bool continues = false;
  std::istringstream parts(text + ",");
  for (std::string part; std::getline(parts, part, ',');) {
    if (trimmed(part) == "...") {
      require_usage(numbers.size() >= 2 && !continues, where,
                    "... needs two numbers before it, and one after it");
      continues = true;
      continue;
    }
    auto number = whole_number(trimmed(part));
    require_usage(number && *number <= most, where,
                  "expected numbers from 1 to 10,000,000, such as 8,16,...,1024");
    if (continues) {
      int64_t b = numbers.back(), a = numbers[numbers.size() - 2];
      bool is_factor = b % a == 0;
      while (numbers.back() < *number)
        add(is_factor ? numbers.back() * (b / a) : numbers.back() + b - a);
      require_usage(numbers.back() == *number, where, "... does not reach ", *number, " from ", a,
                    " and ", b);
      continues = false;
    } else {
      add(*number);
    }
  }
  require_usage(!numbers.empty() && !continues, where, "... needs a number after it");
  return numbers;
}

}  // namespace redco
