#pragma once

#include <redco/sharding.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace redco::sharding {

/// How the ranks of one group split a dimension of a tensor. Its blocks are made a dimension of
/// their own ("opened"), so that what is cut is always one dimension.
class Split {
 public:
  /// `size` is that of the dimension before this group splits it.
  Split(const Placement& placement, int64_t size, int64_t n_ranks);

  /// Pieces of all ranks are alike once padded to the longest.
  at::Tensor padded(const at::Tensor& part) const;
  at::Tensor unpadded(const at::Tensor& part, int64_t rank) const;

  /// A rank's part of the whole; a view where the memory allows.
  at::Tensor part(const at::Tensor& whole, int64_t rank) const;
  /// [n, ...]: the padded parts of all ranks, in order.
  at::Tensor parts(const at::Tensor& whole) const;
  /// The whole again, row-major.
  at::Tensor joined(const at::Tensor& parts) const;

 private:
  at::Tensor open(const at::Tensor& tensor) const;
  at::Tensor close(const at::Tensor& tensor) const;

  int64_t dim_, blocks_;
  std::vector<Span> spans_;
  int64_t longest_ = 0;
  bool is_even_ = true;
};

}  // namespace redco::sharding
