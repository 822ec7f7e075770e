#pragma once

#include <redco/deployer.h>
#include <redco/detail/zero3_store.h>
#include <redco/sharding_rules.h>
#include <redco/tree.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace redco {

/// Parameters laid out over the processes.
struct LaidOut {
  /// Tied weights stay tied; gradients are asked of what they were asked of, and that has memory of
  /// its own.
  Tree params;
  std::vector<ShardingDecision> decisions;
  /// Of what dp ranks share under zero = 3; null: nothing.
  std::shared_ptr<Zero3Store> store;
};

/// Lays `params` out over mp by `rules` and by what `forward` does with them (decide_sharding), and
/// over dp as zero = 3 asks. On one process they stay as they are, and faults of the rules are
/// found all the same. Throws Error for parameters that are not the same on all processes.
LaidOut lay_out(const Tree& params, const Deployer& deployer,
                const std::vector<ShardingRule>& rules,
                const std::function<void(const Tree& params)>& forward);

/// Whether lay_out has been here, or one process has nothing to lay out.
bool is_laid_out(const Tree& params, const Deployer& deployer);

/// The dimension over which dp shares a parameter under zero: the first that mp leaves whole and
/// that has a row for each rank. Nothing for small ones.
std::optional<Placement> shared_over_dp(const at::Tensor& param, const Deployer& deployer);

}  // namespace redco
