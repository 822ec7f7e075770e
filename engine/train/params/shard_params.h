#pragma once

#include <redco/deployer.h>
#include <redco/detail/zero3_store.h>
#include <redco/sharding_rules.h>
#include <redco/tree.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace redco::train {

/// How parameters are laid out: over the model shards, and over the stages of a pipeline.
struct LayoutDecisions {
  std::vector<ShardingDecision> over_model;
  StageDecisions over_stages;
};

/// Parameters laid out over the processes.
struct LaidOut {
  /// Tied weights stay tied, and requires_grad is preserved. Parameters that require gradients have
  /// separate storages.
  Tree params;
  LayoutDecisions decisions;
  /// Holds the parameters that zero = 3 splits; null if there are none.
  std::shared_ptr<Zero3Store> store;
};

/// Lays `params` out over the model shards by `rules` and by the way `forward` uses them
/// (decide_sharding), and splits them further if zero = 3. With one process they are unchanged, but
/// the rules are still checked. Throws Error for parameters that differ between processes.
LaidOut lay_out(const Tree& params, const Deployer& deployer,
                const std::vector<ShardingRule>& rules, const TracedForward& forward);

/// Whether the layout depends on how the parameters are used: lay_out needs `forward`.
bool depends_on_use(const Mesh& mesh);

/// Whether the parameters are already laid out, or there is only one process.
bool is_laid_out(const Tree& params, const Deployer& deployer);

/// The mesh dimensions over which ZeRO splits the state of a parameter: those that do not split it
/// already, as those of experts.
std::vector<Mesh::Dim> zero_dims(const at::Tensor& param, const Mesh& mesh);
/// The placements of a parameter that ZeRO splits, too: on the first dimension that is not split
/// yet and that has at least one row per rank. None for small parameters.
std::optional<Placements> zero_placements(const at::Tensor& param, const Deployer& deployer);

}  // namespace redco::train
