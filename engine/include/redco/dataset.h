#pragma once

#include <redco/export.h>
#include <redco/tree.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace redco {

/// Which dimension of a batch's tensors has the positions of an example, which context shards
/// split: by the path of the tensor; none: it has no positions. Of tensors that are not named it is
/// dimension 1, if they have two. A wrong dimension changes no result; it costs time.
using ContextDims = std::map<std::string, std::optional<int64_t>>;

/// A set of examples, opaque to the engine: it knows their number and asks for batches of them.
struct Dataset {
  int64_t size = 0;
  /// Returns the examples with these indices, each in [0, size), as one batch: a tree of tensors.
  /// Called on the training thread, with the indices in batch order. During a pass over the
  /// dataset, operators without an explicit generator draw from a generator of the batch.
  std::function<Tree(const std::vector<int64_t>& indices)> collate;
  /// Optional: receives the indices of the next `n_ahead` calls of `collate` in advance and in
  /// order, so that other threads can prepare their batches. A pass may end before it calls
  /// `collate` for all of them.
  std::function<void(const std::vector<int64_t>& indices)> prefetch = {};
  int64_t n_ahead = 0;
  ContextDims context_dims = {};
};

/// Which part of a global batch each process collates.
enum class Collate {
  /// The whole batch, of which the process keeps its part: correct for any collate function.
  global,
  /// Only the examples of its part. Gives the same result if the collate function works example
  /// by example: tensors whose first dimension is the number of given examples must agree in the
  /// other dimensions on all processes, and all other tensors, numbers and booleans must be equal.
  /// Strings may differ.
  local,
};

/// References to some examples of a dataset: `for (const Example& example : batch)`.
template <class Example>
using ExampleBatch = std::vector<std::reference_wrapper<const Example>>;

/// A Dataset that owns C++ values; its copies share them. `collate_fn` takes an
/// `ExampleBatch<Example>` and returns a Tree.
template <class Example, class CollateFn>
Dataset dataset(std::vector<Example> examples, CollateFn collate_fn) {
  auto owned = std::make_shared<const std::vector<Example>>(std::move(examples));
  return {int64_t(owned->size()),
          [owned, collate_fn = std::move(collate_fn)](const std::vector<int64_t>& indices) -> Tree {
            ExampleBatch<Example> batch;
            batch.reserve(indices.size());
            for (int64_t index : indices) batch.emplace_back((*owned)[size_t(index)]);
            return collate_fn(batch);
          }};
}

/// The first `size` examples, or all of them if there are fewer.
REDCO_API Dataset head(const Dataset& dataset, int64_t size);

/// The order in which an epoch visits the examples: a permutation of 0 .. size - 1 that depends
/// only on these three numbers, on any machine.
///
/// A SplitMix64 generator is seeded with mix(mix(seed) ^ epoch), where mix is SplitMix64's output
/// function of its argument plus 0x9E3779B97F4A7C15. Starting from the identity, i goes from
/// size - 1 down to 1 and swaps places i and j, where j = floor(r * (i + 1) / 2^64) for the
/// generator's next value r, drawn anew while (r * (i + 1) mod 2^64) < (2^64 mod (i + 1)).
/// (Fisher-Yates; the bound is Lemire's, arXiv 1805.10941.)
REDCO_API std::vector<int64_t> epoch_order(int64_t size, uint64_t seed, uint64_t epoch);

}  // namespace redco
