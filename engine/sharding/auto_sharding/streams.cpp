#include "streams.h"

#include "../operators/rules.h"

#include <algorithm>
#include <utility>

namespace redco::sharding {

Streams::Lineage Streams::of(const Call& call, const CallPlan& plan, const std::set<int>& weights) {
  constexpr Mesh::Dim mp = Mesh::mp;
  std::set<int> read;
  Lineage made;
  bool joins_sum = false;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const Placement &now = call.tensors[i].placements[mp], &target = plan.inputs[i][mp];
    const Lineage& own = lineages_[call.tensors[i].impl];
    if (now.is_sharded()) {
      if (target.is_sharded()) read.insert(own.split.begin(), own.split.end());
    } else {
      made.summed.insert(own.summed.begin(), own.summed.end());
      joins_sum |= target.is_sharded() && (now.is_partial() || !own.summed.empty());
    }
  }
  if (!call.op.facts.is_product) {
    if (joins_sum && is_pointwise(call.op)) {
      joined_splits_.insert(read.begin(), read.end());
      joined_sums_.insert(made.summed.begin(), made.summed.end());
    }
    made.split = std::move(read);
    return made;
  }
  for (int source : read) readers_[source].insert(weights.begin(), weights.end());
  made.summed = std::move(read);
  for (int weight : weights)
    if (std::ranges::find(sources_, weight) != sources_.end()) made.split.insert(weight);
  return made;
}

void Streams::note(const at::Tensor& result, const Lineage& lineage) {
  Lineage& own = lineages_[result.unsafeGetTensorImpl()];
  own = lineage;
  (placements_of(result)[Mesh::mp].is_sharded() ? own.summed : own.split).clear();
}

std::optional<int> Streams::first_source() const {
  auto first = std::ranges::find_if(sources_, [&](int weight) {
    // If several weights read what a source splits, each of them makes a sum.
    return joined_splits_.contains(weight) ||
           (joined_sums_.contains(weight) && readers_.at(weight).size() > 1);
  });
  return first != sources_.end() ? std::optional(*first) : std::nullopt;
}

}  // namespace redco::sharding
