#pragma once

#include <redco/export.h>

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace redco {

/// While it exists, this thread computes scaled_dot_product_attention by LibTorch's math
/// implementation, and segment_attention by that: the fused kernels have no second derivative.
/// LibTorch's own switches are those of the process, whose other threads would see them.
class REDCO_API PlainAttention {
 public:
  PlainAttention();
  ~PlainAttention();
  static bool is_active();  ///< on this thread
  PlainAttention(const PlainAttention&) = delete;
  PlainAttention& operator=(const PlainAttention&) = delete;

 private:
  bool outer_;
  c10::impl::IncludeDispatchKeyGuard include_;
};

}  // namespace redco
