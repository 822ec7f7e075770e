// Decides which parameters are split: by the user's rules, then by tracing a forward pass.

#include <redco/sharding_rules.h>

#include "layout_search.h"
#include "traced_parameters.h"

#include "../../mesh/imagined.h"
#include "../tensor/routing.h"

#include <redco/detail/name_pattern.h>
#include <redco/error.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <unordered_map>

namespace redco {

using namespace sharding;

namespace {

bool matches_any_name(const std::string& pattern, const TracedParameter& parameter) {
  return matches_name(pattern, parameter.name) ||
         std::any_of(parameter.other_names.begin(), parameter.other_names.end(),
                     [&](const std::string& name) { return matches_name(pattern, name); });
}

// The parameters that match a pattern. Those of a pattern without a * are looked up, because a
// table of rules may have a line for each of thousands of parameters.
class ByPattern {
 public:
  explicit ByPattern(const std::vector<TracedParameter>& parameters) : all_(parameters) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      add(parameters[i].name, i);
      for (const std::string& name : parameters[i].other_names) add(name, i);
    }
  }

  std::set<size_t> find(const std::string& pattern) const {
    if (pattern.find('*') == std::string::npos) {
      auto found = by_ending_.find(pattern);
      return found != by_ending_.end() ? found->second : std::set<size_t>();
    }
    std::set<size_t> found;
    for (size_t i = 0; i < all_.size(); ++i)
      if (matches_any_name(pattern, all_[i])) found.insert(i);
    return found;
  }

 private:
  void add(std::string_view name, size_t parameter) {
    by_ending_[name].insert(parameter);
    for (size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', dot + 1))
      by_ending_[name.substr(dot + 1)].insert(parameter);
  }

  const std::vector<TracedParameter>& all_;
  std::unordered_map<std::string_view, std::set<size_t>> by_ending_;
};

void apply_rules(const std::vector<ShardingRule>& rules, std::vector<TracedParameter>& parameters) {
  const ByPattern by_pattern(parameters);
  for (const ShardingRule& rule : rules) {
    const std::set<size_t> matching = by_pattern.find(rule.pattern);
    for (size_t i : matching) {
      TracedParameter& parameter = parameters[i];
      if (parameter.placement) continue;  // an earlier rule decided
      const Placement& placement = rule.placement;
      if (placement.is_sharded()) {
        require(placement.dim >= 0 && placement.dim < parameter.given.dim(), "sharding rule \"",
                rule.pattern, "\" splits dimension ", placement.dim, " of '", parameter.name,
                "', which has the shape ", parameter.given.sizes());
        require(placement.block == 0 || parameter.given.size(placement.dim) % placement.block == 0,
                "sharding rule \"", rule.pattern, "\": dimension ", placement.dim, " of '",
                parameter.name, "', of shape ", parameter.given.sizes(), ", is not a multiple of ",
                placement.block, ", the block");
        require(!placement.lengths || parameter.given.size(placement.dim) ==
                                          std::accumulate(placement.lengths->begin(),
                                                          placement.lengths->end(), int64_t{0}),
                "sharding rule \"", rule.pattern, "\": dimension ", placement.dim, " of '",
                parameter.name, "', of shape ", parameter.given.sizes(),
                ", is not the sum of the blocks in ", to_string(placement));
      }
      parameter.placement = placement;
      parameter.is_by_rule = true;
      parameter.reason = "by the rule \"" + rule.pattern + "\"";
    }
    require(!matching.empty(), "sharding rule \"", rule.pattern,
            "\" matches no parameter; a pattern must match a "
            "whole dotted name or its last parts, with * for anything");
  }
}

// Marks the matrices of low-rank adapters by peft's names: X.lora_A.weight and X.lora_B.weight
// adapt X.weight, or the parameter X of experts.
void mark_adapters(std::vector<TracedParameter>& parameters) {
  std::map<std::string, int> places;
  for (size_t i = 0; i < parameters.size(); ++i) {
    places[parameters[i].name] = int(i);
    for (const std::string& name : parameters[i].other_names) places[name] = int(i);
  }
  for (const auto& [name, first] : places) {
    constexpr std::string_view ending = "lora_A.weight";
    if (!name.ends_with(ending)) continue;
    std::string stem = name.substr(0, name.size() - ending.size());
    auto second = places.find(stem + "lora_B.weight"), weight = places.find(stem + "weight");
    if (weight == places.end()) weight = places.find(stem.substr(0, stem.find_last_of('.')));
    if (second == places.end() || weight == places.end()) continue;
    TracedParameter &a = parameters[size_t(first)], &b = parameters[size_t(second->second)];
    a.adapter = {true, int(a.given.dim()) - 1, weight->second, second->second};
    b.adapter = {false, int(b.given.dim()) - 2, weight->second, first};
  }
}

}  // namespace

namespace sharding {

std::vector<TracedParameter> parameters_of(const Tree& params, std::map<const void*, int>& places) {
  std::vector<TracedParameter> parameters;
  for (const auto& [name, tensor] : named_tensors(params)) {
    // Quantized weights are bytes; other integers stay whole.
    if (!tensor.is_floating_point() && tensor.scalar_type() != at::kByte) continue;
    auto [place, is_new] = places.emplace(tensor.unsafeGetTensorImpl(), int(parameters.size()));
    if (is_new)
      parameters.push_back({name, {}, tensor});
    else
      parameters[size_t(place->second)].other_names.push_back(name);
  }
  return parameters;
}

WatchedForward watched(const Tree& params, const std::map<const void*, int>& places,
                       const TracedForward& forward, int64_t n_model_shards,
                       const std::vector<TracedParameter>& parameters) {
  return {params, places, forward,
          mesh::make_imagined_mesh({.model = n_model_shards}, mesh::Library::gloo,
                                   parameters.empty() ? at::kCPU : parameters[0].given.device())};
}

}  // namespace sharding

std::vector<ShardingDecision> decide_sharding(const Tree& params, int64_t n_model_shards,
                                              const std::vector<ShardingRule>& rules,
                                              const TracedForward& forward,
                                              bool sequence_parallel) {
  require(n_model_shards > 0, "n_model_shards = ", n_model_shards, " must be positive");
  std::map<const void*, int> places;
  std::vector<TracedParameter> parameters = parameters_of(params, places);
  mark_adapters(parameters);
  apply_rules(rules, parameters);
  if (n_model_shards > 1 && forward) {
    at::NoGradGuard no_grad;
    WatchedForward traced = watched(params, places, forward, n_model_shards, parameters);
    traced.is_sequence_parallel = sequence_parallel;
    parameters = least_moving_layout(traced, parameters);
  }

  std::vector<ShardingDecision> decisions;
  for (const TracedParameter& parameter : parameters) {
    Placement placement =
        n_model_shards > 1 ? parameter.placement.value_or(Placement()) : Placement();
    decisions.push_back({parameter.name, parameter.given.sizes().vec(), placement, parameter.reason,
                         int64_t(parameter.given.nbytes()),
                         bytes_of_part(parameter.given, placement, n_model_shards)});
  }
  return decisions;
}

std::map<std::string, Placement> decide_experts(const Tree& params, int64_t n_expert_shards,
                                                const TracedForward& forward) {
  if (n_expert_shards == 1 || !forward) return {};
  at::NoGradGuard no_grad;
  std::map<const void*, int> places;
  std::vector<TracedParameter> parameters = parameters_of(params, places);
  WatchedForward traced = watched(params, places, forward, 1, parameters);
  std::map<std::string, Placement> placements;
  for (const auto& [index, use] : traced.follow(parameters).experts) {
    if (use.n_experts == 0) continue;
    const TracedParameter& parameter = parameters[size_t(index)];
    const Placement placement =
        use.number < 0
            ? Placement::shard(0, 0, parameter.given.size(0) / use.n_experts)
            : Placement::on_rank(Routing::rank_of(use.number, use.n_experts, n_expert_shards));
    placements[parameter.name] = placement;
    for (const std::string& name : parameter.other_names) placements[name] = placement;
  }
  return placements;
}

}  // namespace redco
