#pragma once

#include <redco/plan.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace redco::plan {

/// Bytes of the whole model: what the layouts divide.
struct WholeBytes {
  int64_t parameters = 0, gradients = 0, states = 0;

  int64_t sum() const { return parameters + gradients + states; }
};

/// Computes them without the parameters' values.
WholeBytes whole_bytes(const TrainerOptions& options);

/// The least that a device can hold of them in a layout: each tensor divided evenly.
int64_t least_states(const WholeBytes& whole, const PlannedLayout& layout);

/// The layout that the options ask for. Its `why` says why it is not possible. Throws Error for a
/// number of model shards that does not divide the devices.
PlannedLayout asked_layout(const PlanOptions& options, const TrainerOptions& trainer,
                           const ClusterSpec& cluster);

/// The examples of a step in that layout.
int64_t global_batch_of(const PlanOptions& options, const TrainerOptions& trainer,
                        const PlannedLayout& asked);

/// All other layouts with the same examples in a step: copies and shards of the model, and what
/// ZeRO splits between which copies. In each a device works on as many examples at a time as in the
/// layout that is asked for, if that divides the batch.
std::vector<PlannedLayout> other_layouts(const PlannedLayout& asked, int64_t global_batch_size,
                                         const PlanOptions& options, const TrainerOptions& trainer,
                                         const ClusterSpec& cluster);

/// Whether two layouts are alike, with their batch and recomputation.
bool is_same(const PlannedLayout& a, const PlannedLayout& b);

/// The layout with the largest smaller batch of at most `most` examples; none if there is none.
std::optional<PlannedLayout> with_smaller_batch(const PlannedLayout& layout, int64_t most);

}  // namespace redco::plan
