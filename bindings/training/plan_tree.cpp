// The result of a plan as a tree. Trainer:plan returns it, and the JSON file contains it.

#include "plan_tree.h"

#include "state/values.h"

#include <redco/group.h>

#include <string>
#include <utility>
#include <vector>

namespace redco::lua {

namespace {

Tree list_of(const std::vector<std::string>& texts) {
  Tree::List list;
  for (const std::string& text : texts) list.emplace_back(text);
  return list;
}

Tree tree_of(const Group::Counters& counters) {
  Tree::Dict kinds;
  for (uint8_t kind = 0; kind < Group::n_kinds; ++kind)
    if (counters[kind].bytes > 0)  // what only comes has a count and no bytes
      kinds[Group::name(Group::Kind(kind))] =
          Tree::Dict{{"count", counters[kind].count}, {"bytes", counters[kind].bytes}};
  return kinds;
}

Tree tree_of(const MemoryTimeline& timeline) {
  Tree::List moments;
  for (const MemoryTimeline::Moment& moment : timeline.moments) {
    Tree::Dict kinds;
    for (const auto& [kind, bytes] : moment)
      if (bytes > 0) kinds[kind] = bytes;
    moments.emplace_back(std::move(kinds));
  }
  return Tree::Dict{{"seconds", timeline.seconds}, {"moments", std::move(moments)}};
}

Tree tree_of(const PlannedLayout& layout) {
  Tree::Dict tree{{"n_copies", layout.n_copies},
                  {"n_model_shards", layout.n_model_shards},
                  {"n_context_shards", layout.n_context_shards},
                  {"n_expert_shards", layout.n_expert_shards},
                  {"n_pipeline_stages", layout.n_pipeline_stages},
                  {"n_chunks_per_stage", layout.n_chunks_per_stage},
                  {"stage", layout.stage},
                  {"zero", layout.zero},
                  {"zero_group", layout.zero_group},
                  {"sequence_parallel", layout.sequence_parallel},
                  {"recompute", name_of(layout.recompute)},
                  {"per_device_batch_size", layout.per_device_batch_size},
                  {"accumulate_grad_batches", layout.n_accumulated},
                  {"compute_dtype", dtype_name(layout.compute_dtype)},
                  {"is_asked", layout.is_asked},
                  {"is_least", layout.is_least},
                  {"is_planned", layout.is_planned},
                  {"fits", layout.fits},
                  {"why", layout.why},
                  {"states", layout.states},
                  {"notes", list_of(layout.notes)}};
  if (!layout.is_planned) return tree;
  Tree::Dict memory{{"allocated", layout.allocated},
                    {"fragmentation", layout.fragmentation},
                    {"reserved", layout.reserved},
                    {"total", layout.total}};
  for (const auto& [kind, bytes] : layout.memory) memory[kind] = bytes;
  tree["memory"] = std::move(memory);
  tree["host_memory"] = layout.host_memory;
  Tree::List largest;
  for (const PlannedTensor& tensor : layout.largest)
    largest.push_back(Tree::Dict{{"bytes", tensor.bytes},
                                 {"kind", tensor.kind},
                                 {"operator", tensor.operator_name},
                                 {"line", tensor.line},
                                 {"is_backward", tensor.is_backward}});
  tree["largest"] = std::move(largest);
  Tree::Dict groups;
  for (const auto& [group, counters] : layout.collectives) groups[group] = tree_of(counters);
  tree["collectives"] = std::move(groups);
  tree["seconds"] = Tree::Dict{{"total", layout.seconds},
                               {"exposed", layout.exposed_seconds},
                               {"starting", layout.starting_seconds}};
  tree["mfu"] = layout.mfu;
  if (layout.price) tree["price"] = *layout.price;
  if (!layout.timeline.moments.empty()) tree["timeline"] = tree_of(layout.timeline);
  return tree;
}

}  // namespace

Tree tree_of(const StepPlan& plan, const ClusterSpec& cluster) {
  Tree::List layouts;
  for (const PlannedLayout& layout : plan.layouts) layouts.push_back(tree_of(layout));
  return Tree::Dict{{"schema", int64_t{1}},
                    {"cluster", cluster.text()},
                    {"n_devices", cluster.n_devices()},
                    {"device_memory", plan.memory},
                    {"n_parameters", plan.n_parameters},
                    {"global_batch_size", plan.global_batch_size},
                    {"n_traced", plan.n_traced},
                    {"layouts", std::move(layouts)},
                    {"why", plan.why},
                    {"states", plan.states},
                    {"least_devices", plan.least_devices},
                    {"notes", list_of(plan.notes)}};
}

Tree tree_of(const std::vector<ScalingPoint>& curve, Scaling scaling, const ClusterSpec& cluster) {
  Tree::List points;
  for (const ScalingPoint& point : curve)
    points.push_back(Tree::Dict{{"n_devices", point.n_devices},
                                {"global_batch_size", point.global_batch_size},
                                {"examples_per_second", point.examples_per_second},
                                {"efficiency", point.efficiency},
                                {"layout", tree_of(point.layout)}});
  return Tree::Dict{{"schema", int64_t{1}},
                    {"cluster", cluster.text()},
                    {"scaling", scaling == Scaling::weak ? "weak" : "strong"},
                    {"points", std::move(points)},
                    {"bend", bend_of(curve)}};
}

}  // namespace redco::lua
