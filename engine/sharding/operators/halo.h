#pragma once

#include <redco/group.h>
#include <redco/sharding.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace redco::sharding {

/// The parts of a dimension of `size` that ranks hold, by rank, counted from `begin`.
std::vector<Span> parts_of_ranks(int64_t size, int64_t n_ranks, int64_t begin = 0);

/// The intersection of two ranges, which may be empty.
Span common(const Span& a, const Span& b);

/// The ranges of a dimension that the ranks of a group hold, and those that they need, by rank, in
/// the same count. Ranges that are held do not overlap.
struct HeldAndNeeded {
  std::vector<Span> held, needed;

  /// The most elements that a rank needs of another one.
  int64_t longest_piece() const;
  /// Whether an exchange sends at most half as much as if all parts were joined.
  bool sends_few() const;
  /// What is sent back.
  HeldAndNeeded back() const { return {needed, held}; }
};

/// Returns what this rank needs, from the part that it holds: neighbours exchange the rest.
/// Elements that nobody holds are zeros.
at::Tensor exchanged_along(const at::Tensor& part, int64_t dim, const HeldAndNeeded& ranges,
                           Group& group);
/// The same where ranks may hold the same elements, as terms of sums: returns the sums.
at::Tensor summed_along(const at::Tensor& part, int64_t dim, const HeldAndNeeded& ranges,
                        Group& group);

}  // namespace redco::sharding
