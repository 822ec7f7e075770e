#include "stage_traces.h"

#include "../../train/step/pipeline.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <set>
#include <utility>

namespace redco::plan {

std::vector<ShardingRule> rules_of(const std::vector<ShardingDecision>& decisions) {
  std::vector<ShardingRule> rules;
  for (const ShardingDecision& each : decisions) rules.push_back({each.name, each.placement});
  // Sorts the longest names first: a pattern also matches the end of a longer name, and the first
  // match counts.
  std::ranges::stable_sort(rules, std::greater<>(),
                           [](const ShardingRule& rule) { return rule.pattern.size(); });
  return rules;
}

int64_t n_traced_of(const TracedLayout& layout) {
  if (layout.mesh.stages == 1) return layout.n_accumulated;
  const auto in_group =
      int64_t(train::most_in_group(layout.mesh.stages, size_t(layout.n_accumulated)));
  return std::min(layout.n_accumulated,
                  layout.mesh.chunks == 1 ? layout.mesh.stages + 1 : 2 * in_group);
}

std::vector<TracedStage> trace_stages(TracedProgram program, TracedLayout layout) {
  layout.n_accumulated = n_traced_of(layout);
  layout.mesh.stage = 0;
  std::vector<TracedStage> traced;
  traced.push_back({0, trace_step(program, layout)});
  if (layout.mesh.stages == 1) return traced;
  program.options.params_sharding_rules = rules_of(traced.front().trace.decisions);
  const auto& stages = traced.front().trace.stages;
  auto busiest = std::ranges::max_element(stages, {}, &StageDecisions::Stage::flops);
  for (int64_t stage : std::set{int64_t(busiest - stages.begin()), layout.mesh.stages - 1}) {
    if (stage == 0) continue;
    layout.mesh.stage = stage;
    traced.push_back({stage, trace_step(program, layout)});
  }
  return traced;
}

}  // namespace redco::plan
