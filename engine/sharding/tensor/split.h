#pragma once

#include <redco/sharding.h>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

namespace redco::sharding {

/// How the ranks of one group split a dimension of a tensor into contiguous pieces of each block.
/// The blocks are first unflattened into a separate dimension ("opened"), so that every cut is
/// along one dimension.
class Split {
 public:
  /// `size`: of the dimension before this group splits it.
  Split(const Placement& placement, int64_t size, int64_t n_ranks);

  /// The maximum length of the dimension over the ranks' parts.
  int64_t longest_part() const { return blocks_ * longest_; }

  /// Pads a rank's part to the longest part, so that all have the same size.
  at::Tensor padded(const at::Tensor& part) const;
  at::Tensor unpadded(const at::Tensor& part, int64_t rank) const;

  /// Returns a rank's part of the whole tensor, as a view if possible.
  at::Tensor part(const at::Tensor& whole, int64_t rank) const;
  /// Returns the padded parts of all ranks, stacked in order: [n, ...].
  at::Tensor parts(const at::Tensor& whole) const;
  /// Joins the stacked parts into the whole tensor, row-major.
  at::Tensor joined(const at::Tensor& parts) const;

 private:
  at::Tensor open(const at::Tensor& tensor) const;
  at::Tensor close(const at::Tensor& tensor) const;
  /// Where a rank's part comes from: one span of each block, or of blocks that differ all spans.
  c10::ArrayRef<Span> spans_of(size_t rank) const;

  int64_t dim_, blocks_;
  std::vector<Span> spans_;
  std::vector<std::vector<Span>> pieces_;  // if blocks differ in length: by rank, then block
  int64_t longest_ = 0;
  bool is_even_ = true;
};

}  // namespace redco::sharding
