#pragma once

#include <redco/export.h>
#include <redco/sharding.h>
#include <redco/tree.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace redco {

/// The placement on mp of parameters whose dotted names match a pattern. In a pattern `*` stands
/// for any text; the pattern must match the whole name or its last parts: "q_proj.weight" matches
/// every query projection.
struct ShardingRule {
  std::string pattern;
  Placement placement;
};

/// The placement chosen for one parameter, and the reason.
struct ShardingDecision {
  std::string name;
  std::vector<int64_t> sizes;
  Placement placement;  ///< on mp
  std::string reason;
  int64_t bytes = 0;             ///< of the full parameter
  int64_t bytes_per_device = 0;  ///< of the largest part
};

/// A forward pass to trace. Returns what is used of it: a loss, whose backward pass counts too, or
/// predictions, which all ranks must get. If it returns no tensors, only its own moves count.
using TracedForward = std::function<Tree(const Tree& params)>;

/// Chooses the placements of the floating-point parameters on `n_model_shards` ranks.
///
/// `forward` is called with tensors that have the shapes of `params` but no values. The operators
/// it calls show which weight feeds which: a weight whose input is replicated is split along its
/// outputs, one whose input is split is split along its inputs, so that a pair needs one reduction;
/// embeddings are split along their rows. If the outputs are regrouped into attention heads, each
/// rank must get whole heads; otherwise the weight is not split. Where this gathers what is split,
/// or keeps much whole, other placements of the weights involved are tried, and what moves least
/// over the whole step, sequence parallel or not, is taken: layers of one kind get one placement.
/// `forward` may be called many times.
///
/// The first rule that matches a parameter decides its placement. Throws Error for a rule that
/// matches nothing, and for one that splits a dimension that does not exist.
REDCO_API std::vector<ShardingDecision> decide_sharding(const Tree& params, int64_t n_model_shards,
                                                        const std::vector<ShardingRule>& rules,
                                                        const TracedForward& forward,
                                                        bool sequence_parallel = false);

/// The placements on `n_expert_shards` ranks of the parameters that are weights of experts:
/// `forward` multiplies rows by them that choose them by numbers (grouped_linear). By name. Each
/// expert is on one rank, and a stack of them is split between experts.
REDCO_API std::map<std::string, Placement> decide_experts(const Tree& params,
                                                          int64_t n_expert_shards,
                                                          const TracedForward& forward);

/// Which stage of a pipeline has which parameters.
struct StageDecisions {
  struct Stage {
    int64_t n_blocks = 0;
    double flops = 0;  ///< of products of the traced forward pass
  };
  int64_t n_chunks_per_stage = 1;
  /// With chunks, each of them; i is on stage i % n_pipeline_stages. Empty: there is one stage.
  std::vector<Stage> stages = {};
  std::map<std::string, int64_t> stage_of = {};  ///< by name; others are on all stages
  std::vector<std::string> shared = {};          ///< parameters that several stages use
};

/// Divides the blocks of `forward` (redco.nn.block, RecomputeBlocks) into n_pipeline_stages *
/// n_chunks_per_stage consecutive runs, so that the one with the most work has as little as
/// possible. A parameter belongs to the blocks that use it, and what is used before the first
/// block, or after a block, to that one. Throws Error if there are fewer blocks than runs.
REDCO_API StageDecisions decide_stages(const Tree& params, int64_t n_pipeline_stages,
                                       int64_t n_chunks_per_stage, const TracedForward& forward);

/// Formats the stages as a readable table.
REDCO_API std::string to_string(const StageDecisions& decisions);

/// Formats the decisions as a readable table: name, shape, placement, bytes per device, reason.
/// Layers of one kind share a line.
REDCO_API std::string to_string(const std::vector<ShardingDecision>& decisions);

}  // namespace redco
