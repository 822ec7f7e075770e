// Attention within segments on plain tensors. query, key and value are [B, H, T, D] with a stride
// of 1 in D, key and value with fewer heads where heads are shared; segment_ids is [B, T].

#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

namespace redco::kernels {

struct Segment {
  int64_t row, begin, end;
};

/// The sequences of rows, in order.
struct Segments {
  std::vector<Segment> all;
  int64_t longest = 0;
  at::Tensor
      ends;  ///< where they begin and end in the joined rows, int32, on the device of the ids
};

/// Reads the ids, unless it has read the same tensor before: all layers of a model have the same
/// one, and of a GPU the read waits for all that is queued. Throws Error if two runs of a row have
/// the same number.
REDCO_API std::shared_ptr<const Segments> segments_of(const at::Tensor& segment_ids);

struct SegmentOptions {
  std::optional<at::Tensor> segment_ids;
  std::optional<int64_t> window;
  double scale;
};

/// out, [B, H, T, D] as a view of [B, T, H, D], and logsumexp [B, H, T].
using Attended = std::tuple<at::Tensor, at::Tensor>;
/// Those of query, key and value.
using HeadGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

/// By LibTorch's kernel for CPUs, sequence by sequence, or by blocks of a window.
REDCO_API Attended attend_on_cpu(const at::Tensor& query, const at::Tensor& key,
                                 const at::Tensor& value, const SegmentOptions& options);
REDCO_API HeadGradients attend_on_cpu_backward(const at::Tensor& grad, const at::Tensor& query,
                                               const at::Tensor& key, const at::Tensor& value,
                                               const at::Tensor& out, const at::Tensor& logsumexp,
                                               const SegmentOptions& options);

/// By LibTorch's flash attention for GPUs.
REDCO_API Attended attend_on_gpu(const at::Tensor& query, const at::Tensor& key,
                                 const at::Tensor& value, const SegmentOptions& options);
REDCO_API HeadGradients attend_on_gpu_backward(const at::Tensor& grad, const at::Tensor& query,
                                               const at::Tensor& key, const at::Tensor& value,
                                               const at::Tensor& out, const at::Tensor& logsumexp,
                                               const SegmentOptions& options);

}  // namespace redco::kernels
