#include "pipeline.h"

#include <algorithm>

namespace redco::train {

namespace {

size_t n_groups_of(int64_t n_stages, size_t n_batches) {
  return std::max<size_t>(1, n_batches / size_t(n_stages));
}

// Returns the forward passes, or the backward passes, of a stage in their order.
std::vector<Turn> passes_of(bool is_backward, int64_t n_chunks, size_t n_batches, size_t n_groups) {
  std::vector<Turn> passes;
  for (size_t group = 0; group < n_groups; ++group)
    for (int64_t i = 0; i < n_chunks; ++i)
      for (size_t batch = n_batches * group / n_groups; batch < n_batches * (group + 1) / n_groups;
           ++batch)
        passes.push_back({batch, is_backward ? n_chunks - 1 - i : i, is_backward});
  return passes;
}

}  // namespace

size_t most_in_group(int64_t n_stages, size_t n_batches) {
  const size_t n_groups = n_groups_of(n_stages, n_batches);
  return (n_batches + n_groups - 1) / n_groups;
}

std::vector<Turn> turns_of(int64_t stage, int64_t n_stages, int64_t n_chunks, size_t n_batches) {
  const size_t n_groups = n_groups_of(n_stages, n_batches);
  const std::vector<Turn> forward = passes_of(false, n_chunks, n_batches, n_groups);
  const std::vector<Turn> backward = passes_of(true, n_chunks, n_batches, n_groups);
  const auto behind = size_t(n_stages - 1 - stage);
  const size_t n_ahead = std::min(
      forward.size(), n_chunks == 1
                          ? behind
                          : 2 * behind + size_t(n_chunks - 1) * most_in_group(n_stages, n_batches));
  std::vector<Turn> turns;
  for (size_t i = 0; i < forward.size() + n_ahead; ++i) {
    if (i < forward.size()) turns.push_back(forward[i]);
    if (i >= n_ahead) turns.push_back(backward[i - n_ahead]);
  }
  return turns;
}

}  // namespace redco::train
