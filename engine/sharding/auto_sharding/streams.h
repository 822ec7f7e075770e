// Finds weights that split a stream of features which residual blocks add to.

#pragma once

#include "../call/call_plan.h"

#include <ATen/core/Tensor.h>

#include <map>
#include <set>
#include <unordered_map>
#include <vector>

namespace redco::sharding {

/// Follows the outputs of weights through a forward pass. A stream that is split, such as the
/// output of the first convolution of a UNet, makes all blocks that read it compute sums, which are
/// then split to be added to it. If its sources are whole, the first weight of a block can be split
/// along its outputs and the second along its inputs.
class Streams {
 public:
  /// Notes a weight that is split along its outputs.
  void add_source(int weight) { sources_.push_back(weight); }

  /// The sources that a tensor comes from.
  struct Lineage {
    std::set<int> split;  ///< if it is split: those whose outputs it consists of
    std::set<int>
        summed;  ///< of a sum, or one that was split to be added: those of what was summed
    bool adds_sum = false;  ///< whether sums were split to be added in it
  };
  /// The lineage of a call's results. weights: the matrices among its arguments.
  Lineage of(const Call& call, const CallPlan& plan, const std::set<int>& weights);
  /// Keeps the lineage of a result. The tensor must outlive this object.
  void note(const at::Tensor& result, const Lineage& lineage);

  /// The sources, in order of use, of what is split and sums are added to.
  std::vector<int> sources() const;

 private:
  std::vector<int> sources_;
  std::unordered_map<const void*, Lineage> lineages_;
  std::map<int, std::set<int>> readers_;  // the weights that read the outputs of a source
  // Of sums that are added to something split: the sources of this, and those of the sums.
  std::set<int> joined_splits_, joined_sums_;
};

}  // namespace redco::sharding
