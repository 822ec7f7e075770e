#include "streams.h"

#include "../operators/rules.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace redco::sharding {

Streams::Lineage Streams::of(const Call& call, const CallPlan& plan, const std::set<int>& weights) {
  constexpr Mesh::Dim mp = Mesh::mp;
  std::set<int> read;
  Lineage made;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const Placement &now = call.tensors[i].placements[mp], &target = plan.inputs[i][mp];
    const Lineage& own = lineages_[call.tensors[i].impl];
    if (now.is_sharded()) {
      if (target.is_sharded()) read.insert(own.split.begin(), own.split.end());
      if (call.op.facts.is_product || !own.adds_sum) continue;
    }
    made.summed.insert(own.summed.begin(), own.summed.end());
    made.adds_sum |= target.is_sharded() && (now.is_partial() || !own.summed.empty());
  }
  if (!call.op.facts.is_product) {
    if (made.adds_sum && is_pointwise(call.op)) {
      joined_splits_.insert(read.begin(), read.end());
      joined_sums_.insert(made.summed.begin(), made.summed.end());
    }
    made.split = std::move(read);
    return made;
  }
  made.adds_sum = false;
  for (int source : read) readers_[source].insert(weights.begin(), weights.end());
  made.summed = std::move(read);
  for (int weight : weights)
    if (std::ranges::find(sources_, weight) != sources_.end()) made.split.insert(weight);
  return made;
}

void Streams::note(const at::Tensor& result, const Lineage& lineage) {
  Lineage& own = lineages_[result.unsafeGetTensorImpl()];
  own = lineage;
  const bool is_split = placements_of(result)[Mesh::mp].is_sharded();
  if (!is_split) own.split.clear();
  if (is_split && !own.adds_sum) own.summed.clear();
}

std::vector<int> Streams::sources() const {
  std::vector<int> result;
  std::ranges::copy_if(sources_, std::back_inserter(result), [&](int weight) {
    // If several weights read what a source splits, each of them makes a sum.
    return joined_splits_.contains(weight) ||
           (joined_sums_.contains(weight) && readers_.at(weight).size() > 1);
  });
  return result;
}

}  // namespace redco::sharding
