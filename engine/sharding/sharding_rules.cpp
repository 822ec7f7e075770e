// Which parameters of a tree are split: by the rules of the user, then by watching a forward pass.

#include <redco/sharding_rules.h>

#include "layout_tracer.h"

#include <redco/error.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string_view>

namespace redco {

namespace {

bool matches(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern[0] == '*') {
    for (size_t skip = 0; skip <= text.size(); ++skip)
      if (matches(pattern.substr(1), text.substr(skip))) return true;
    return false;
  }
  return !text.empty() && text[0] == pattern[0] && matches(pattern.substr(1), text.substr(1));
}

bool matches_name(const std::string& pattern, const std::string& name) {
  if (matches(pattern, name)) return true;
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
    if (matches(pattern, std::string_view(name).substr(dot + 1))) return true;
  return false;
}

bool matches_any_name(const std::string& pattern, const TracedParameter& parameter) {
  return matches_name(pattern, parameter.name) ||
         std::any_of(parameter.other_names.begin(), parameter.other_names.end(),
                     [&](const std::string& name) { return matches_name(pattern, name); });
}

void apply_rules(const std::vector<ShardingRule>& rules, std::vector<TracedParameter>& parameters) {
  for (const ShardingRule& rule : rules) {
    bool matched = false;
    for (TracedParameter& parameter : parameters) {
      if (!matches_any_name(rule.pattern, parameter)) continue;
      matched = true;
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
      }
      parameter.placement = placement;
      parameter.reason = "by the rule \"" + rule.pattern + "\"";
    }
    require(matched, "sharding rule \"", rule.pattern,
            "\" matches no parameter; a pattern must match a "
            "whole dotted name or its last parts, with * for anything");
  }
}

Tree with_stand_ins(const Tree& params, LayoutTracer& tracer,
                    const std::map<const void*, int>& places) {
  std::map<int, at::Tensor> made;  // tied weights stay tied
  return map_tensors(params, [&](const std::string&, const at::Tensor& tensor) {
    auto place = places.find(tensor.unsafeGetTensorImpl());
    if (place == places.end()) return tensor;
    at::Tensor& stand_in = made[place->second];
    if (!stand_in.defined()) stand_in = tracer.stand_in(place->second);
    return stand_in;
  });
}

}  // namespace

std::vector<ShardingDecision> decide_sharding(
    const Tree& params, int64_t n_model_shards, const std::vector<ShardingRule>& rules,
    const std::function<void(const Tree& params)>& forward) {
  require(n_model_shards > 0, "n_model_shards = ", n_model_shards, " must be positive");
  std::vector<TracedParameter> parameters;
  std::map<const void*, int> places;
  for (const auto& [name, tensor] : named_tensors(params)) {
    if (!tensor.is_floating_point()) continue;
    auto [place, is_new] = places.emplace(tensor.unsafeGetTensorImpl(), int(parameters.size()));
    if (is_new)
      parameters.push_back({name, {}, tensor});
    else
      parameters[size_t(place->second)].other_names.push_back(name);
  }
  apply_rules(rules, parameters);
  if (n_model_shards > 1 && forward) {
    at::NoGradGuard no_grad;
    std::shared_ptr<const Mesh> mesh = make_imagined_mesh(
        n_model_shards, parameters.empty() ? at::kCPU : parameters[0].given.device());
    std::vector<TracedParameter> ruled = parameters;
    // Each round mends at least one parameter, and none twice to the same.
    for (size_t round = 0; round <= 2 * parameters.size(); ++round) {
      std::vector<TracedParameter> watched = ruled;
      LayoutTracer tracer(watched, mesh);
      forward(with_stand_ins(params, tracer, places));
      const auto corrections = tracer.corrections();
      if (corrections.empty()) {
        parameters = std::move(watched);
        break;
      }
      for (const auto& [index, correction] : corrections) {
        ruled[size_t(index)].placement = correction.placement;
        ruled[size_t(index)].reason = correction.reason;
        ruled[size_t(index)].is_mended = true;
      }
    }
  }

  std::vector<ShardingDecision> decisions;
  for (const TracedParameter& parameter : parameters) {
    Placement placement =
        n_model_shards > 1 ? parameter.placement.value_or(Placement()) : Placement();
    ShardingDecision decision{parameter.name, parameter.given.sizes().vec(), placement,
                              parameter.reason};
    decision.bytes = decision.bytes_per_device = int64_t(parameter.given.nbytes());
    if (placement.is_sharded()) {
      int64_t size = parameter.given.size(placement.dim), longest = 0;
      for (int64_t rank = 0; rank < n_model_shards; ++rank)
        longest = std::max(longest,
                           span_of(placement.block_length(size), 1, n_model_shards, rank).length());
      decision.bytes_per_device =
          size == 0 ? 0 : decision.bytes / size * longest * placement.n_blocks(size);
    }
    decisions.push_back(std::move(decision));
  }
  return decisions;
}

std::vector<ShardingRule> as_rules(const std::vector<ShardingDecision>& decisions) {
  std::vector<ShardingRule> rules;
  for (const ShardingDecision& decision : decisions)
    if (decision.placement.is_sharded()) rules.push_back({decision.name, decision.placement});
  return rules;
}

}  // namespace redco
