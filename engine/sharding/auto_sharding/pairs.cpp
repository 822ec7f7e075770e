#include "pairs.h"

#include <algorithm>
#include <utility>

namespace redco::sharding {

void Pairs::note_sum(const std::set<int>& weights, int64_t n_outputs) {
  for (const auto& [first, seconds] : seconds_) {
    const auto is_second = [&](int weight) { return seconds.contains(weight); };
    if (std::ranges::none_of(weights, is_second)) continue;
    for (int weight : first) {
      auto n_inputs = n_inputs_.find(weight);
      if (n_inputs != n_inputs_.end() && n_inputs->second < n_outputs)
        with_wide_sums_.insert(weight);
    }
  }
}

std::set<int> Pairs::first_weights() const {
  std::set<int> result;
  for (const auto& [first, seconds] : seconds_) result.insert(first.begin(), first.end());
  return result;
}

std::set<int> Pairs::suspects() const {
  std::set<int> result = with_wide_sums_;
  for (const auto& [first, seconds] : seconds_)
    if (seconds.size() > 1) result.insert(first.begin(), first.end());
  return result;
}

std::set<std::set<int>> Pairs::suspects_together() const {
  std::set<std::set<int>> result;
  for (const auto& [first, seconds] : seconds_)
    if (first.size() > 1 && seconds.size() > 1) result.insert(first);
  return result;
}

std::set<std::set<int>> Pairs::all() const {
  std::set<std::set<int>> result;
  for (const auto& [first, seconds] : seconds_) {
    std::set<int> pair = first;
    pair.insert(seconds.begin(), seconds.end());
    result.insert(std::move(pair));
  }
  const std::set<int> first = first_weights();
  for (int weight : narrow_)
    if (!first.contains(weight)) result.insert({weight});
  return result;
}

}  // namespace redco::sharding
