// Decides which parameters are split: by the user's rules, then by tracing a forward pass.

#include <redco/sharding_rules.h>

#include "forward_watcher.h"

#include "../../mesh/imagined.h"

#include <redco/detail/name_pattern.h>
#include <redco/error.h>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <map>
#include <numeric>
#include <string_view>

namespace redco {

using namespace sharding;

namespace {

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
    require(matched, "sharding rule \"", rule.pattern,
            "\" matches no parameter; a pattern must match a "
            "whole dotted name or its last parts, with * for anything");
  }
}

// Marks the matrices of low-rank adapters by peft's names: X.lora_A.weight and X.lora_B.weight
// adapt X.weight.
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
    if (second == places.end() || weight == places.end()) continue;
    parameters[size_t(first)].adapter = {true, weight->second, second->second};
    parameters[size_t(second->second)].adapter = {false, weight->second, first};
  }
}

// A forward pass that can be traced repeatedly.
class Watched {
 public:
  Watched(const Tree& params, std::map<const void*, int> places,
          const std::function<void(const Tree& params)>& forward, std::shared_ptr<const Mesh> mesh)
      : params_(params), places_(std::move(places)), forward_(forward), mesh_(std::move(mesh)) {}

  struct Layout {
    std::vector<TracedParameter> parameters;
    double bytes_moved = 0;
    std::set<std::set<int>> shared_sources = {};
  };

  // The placements that follow from the parameters already decided.
  Layout layout(std::vector<TracedParameter> decided) {
    // Each round corrects at least one parameter, and no correction repeats.
    for (size_t round = 0; round <= 2 * decided.size(); ++round) {
      Layout found{decided};
      ForwardWatcher watcher(found.parameters, mesh_);
      if (!watch(watcher)) {
        for (TracedParameter& parameter : found.parameters)
          if (!parameter.placement) parameter.reason = "not used before the trace ended: whole";
        return found;
      }
      const auto corrections = watcher.corrections();
      if (corrections.empty()) {
        found.bytes_moved = watcher.bytes_moved();
        found.shared_sources = watcher.shared_sources();
        return found;
      }
      for (const auto& [index, correction] : corrections) {
        decided[size_t(index)].placement = correction.placement;
        decided[size_t(index)].reason = correction.reason;
        decided[size_t(index)].was_corrected = true;
      }
    }
    return {std::move(decided)};
  }

 private:
  // Returns whether the forward pass completed. Some fail only on tensors without values or
  // gradients; others fail in any case, and then the error of a plain run is clearer.
  bool watch(ForwardWatcher& watcher) {
    try {
      forward_(with_stand_ins(watcher));
      return true;
    } catch (const Interrupted&) {
      throw;
    } catch (const std::exception& error) {
      if (!runs_alone_) {
        WithExecution on_parts(nullptr);
        at::AutoGradMode with_gradients(true);
        forward_(copies());
        runs_alone_ = true;
        TORCH_WARN(
            "The sharding of the parameters was decided from the part of ",
            "the function that ran on tensors without values; it failed there: ", error.what(),
            "\nParameters used later stay whole; sharding rules can split them");
      }
      return false;
    }
  }

  Tree copies() const {
    std::map<const void*, at::Tensor> made;  // tied weights stay tied
    return map_tensors(params_, [&](const std::string&, const at::Tensor& tensor) {
      at::Tensor& copy = made[tensor.unsafeGetTensorImpl()];
      if (!copy.defined()) copy = tensor.detach().clone().set_requires_grad(tensor.requires_grad());
      return copy;
    });
  }

  Tree with_stand_ins(ForwardWatcher& watcher) const {
    std::map<int, at::Tensor> made;  // tied weights stay tied
    return map_tensors(params_, [&](const std::string&, const at::Tensor& tensor) {
      auto place = places_.find(tensor.unsafeGetTensorImpl());
      // A copy: a forward pass may count its calls in it.
      if (place == places_.end()) return tensor.clone();
      at::Tensor& stand_in = made[place->second];
      if (!stand_in.defined()) stand_in = watcher.stand_in(place->second);
      return stand_in;
    });
  }

  const Tree& params_;
  std::map<const void*, int> places_;
  const std::function<void(const Tree& params)>& forward_;
  std::shared_ptr<const Mesh> mesh_;
  bool runs_alone_ = false;
};

// Several weights with the same split input, such as those that read a residual stream, each need a
// reduction. Keeps such an input whole if that halves the bytes moved.
std::vector<TracedParameter> least_moving(Watched& watched, std::vector<TracedParameter> decided) {
  Watched::Layout best = watched.layout(decided);
  std::set<std::set<int>> tried;
  for (bool is_better = true; is_better;) {
    is_better = false;
    for (const std::set<int>& sources : best.shared_sources) {
      if (!tried.insert(sources).second) continue;
      std::vector<TracedParameter> changed = decided;
      for (int source : sources)
        if (!changed[size_t(source)].placement && best.parameters[size_t(source)].is_multiplied)
          changed[size_t(source)].why_outputs_whole =
              "split outputs would need a reduction in several weights: whole";
      Watched::Layout other = watched.layout(changed);
      is_better = 2 * other.bytes_moved <= best.bytes_moved;
      if (!is_better) continue;
      best = std::move(other);
      decided = std::move(changed);
      break;
    }
  }
  return std::move(best.parameters);
}

}  // namespace

std::vector<ShardingDecision> decide_sharding(
    const Tree& params, int64_t n_model_shards, const std::vector<ShardingRule>& rules,
    const std::function<void(const Tree& params)>& forward) {
  require(n_model_shards > 0, "n_model_shards = ", n_model_shards, " must be positive");
  std::vector<TracedParameter> parameters;
  std::map<const void*, int> places;
  for (const auto& [name, tensor] : named_tensors(params)) {
    // Quantized weights are bytes; other integers stay whole.
    if (!tensor.is_floating_point() && tensor.scalar_type() != at::kByte) continue;
    auto [place, is_new] = places.emplace(tensor.unsafeGetTensorImpl(), int(parameters.size()));
    if (is_new)
      parameters.push_back({name, {}, tensor});
    else
      parameters[size_t(place->second)].other_names.push_back(name);
  }
  mark_adapters(parameters);
  apply_rules(rules, parameters);
  if (n_model_shards > 1 && forward) {
    at::NoGradGuard no_grad;
    std::shared_ptr<const Mesh> mesh =
        mesh::make_imagined_mesh({.model = n_model_shards}, mesh::Library::gloo,
                                 parameters.empty() ? at::kCPU : parameters[0].given.device());
    Watched watched(params, places, forward, mesh);
    parameters = least_moving(watched, parameters);
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
        longest = std::max(longest, placement.part_length(size, n_model_shards, rank));
      decision.bytes_per_device = size == 0 ? 0 : decision.bytes / size * longest;
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
