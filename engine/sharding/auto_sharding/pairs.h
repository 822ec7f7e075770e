// Pairs of weights: the first is split along its outputs, the second along its inputs, and the
// outputs of the second are sums.

#pragma once

#include <cstdint>
#include <map>
#include <set>

namespace redco::sharding {

/// Collects the pairs of a forward pass. Parameters are given by their indices.
class Pairs {
 public:
  /// Notes a weight that is split along its outputs, how many elements its input has, and whether
  /// it has fewer outputs than inputs.
  void add_source(int weight, int64_t n_inputs, bool is_narrow) {
    n_inputs_[weight] = n_inputs;
    if (is_narrow) narrow_.insert(weight);
  }
  /// Notes a weight that is split along its inputs, which the first weights split.
  void add(const std::set<int>& first, int second) { seconds_[first].insert(second); }
  /// Notes how many elements the sums have that these weights make.
  void note_sum(const std::set<int>& weights, int64_t n_outputs);

  /// The first weights of all pairs.
  std::set<int> first_weights() const;
  /// The first weights for which other pairs may move less: several second weights, each of which
  /// makes a sum, or a sum with more elements than the input of the first weight.
  std::set<int> suspects() const;
  /// The first weights of each pair with several of them and several second weights.
  std::set<std::set<int>> suspects_together() const;
  /// The weights of each pair. Several first weights, or several second ones, are one pair. A
  /// narrow weight without a second one, such as the head of a classifier, stands alone.
  std::set<std::set<int>> all() const;

 private:
  std::map<std::set<int>, std::set<int>> seconds_;  // by the first weights
  std::map<int, int64_t> n_inputs_;
  std::set<int> narrow_, with_wide_sums_;
};

}  // namespace redco::sharding
