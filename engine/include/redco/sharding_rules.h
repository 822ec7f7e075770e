#pragma once

#include <redco/export.h>
#include <redco/sharding.h>
#include <redco/tree.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace redco {

/// How the parameters whose dotted names match lie over mp. In a pattern `*` stands for anything;
/// it must match the whole name or its last parts: "q_proj.weight" is every query projection.
struct ShardingRule {
  std::string pattern;
  Placement placement;
};

/// What was decided for one parameter, and why.
struct ShardingDecision {
  std::string name;
  std::vector<int64_t> sizes;
  Placement placement;  ///< on mp
  std::string reason;
  int64_t bytes = 0;             ///< of the whole
  int64_t bytes_per_device = 0;  ///< of the largest part
};

/// Decides how the floating-point parameters lie over `n_model_shards` ranks.
///
/// `forward` is called with tensors that have shapes and no values, like those of `params`; what it
/// returns is not used. The operators it calls say which weight feeds which: one whose input is
/// whole is split along its outputs, one whose input comes split is split along it, so that a pair
/// needs one reduction; embeddings are split along their rows. Where outputs are regrouped into
/// attention heads, each rank must get whole ones; else the weight stays whole. It may be called
/// several times.
///
/// The first rule that matches a parameter decides for it. Throws Error for a rule that matches
/// nothing, and for one that splits a dimension which is not there.
REDCO_API std::vector<ShardingDecision> decide_sharding(
    const Tree& params, int64_t n_model_shards, const std::vector<ShardingRule>& rules,
    const std::function<void(const Tree& params)>& forward);

/// The decisions as rules, one for each parameter that is split.
REDCO_API std::vector<ShardingRule> as_rules(const std::vector<ShardingDecision>& decisions);

/// A table for people: name, shape, placement, bytes per device, reason; layers of one kind in one
/// line.
REDCO_API std::string to_string(const std::vector<ShardingDecision>& decisions);

}  // namespace redco
