#pragma once

#include <redco/cluster.h>
#include <redco/plan.h>
#include <redco/plan_scaling.h>
#include <redco/tree.h>

#include <vector>

namespace redco::lua {

/// The result of Trainer:plan.
Tree tree_of(const StepPlan& plan, const ClusterSpec& cluster);

/// The same of a scaling curve.
Tree tree_of(const std::vector<ScalingPoint>& curve, Scaling scaling, const ClusterSpec& cluster);

}  // namespace redco::lua
