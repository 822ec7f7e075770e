#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace redco {

/// Causal attention within the sequences of a row, and within a window: a token attends to itself
/// and to tokens before it, of its own sequence and among the last `window`. query is [batch,
/// heads, length, size]; key and value have as many heads or fewer, each for a run of query heads.
/// `segment_ids` [batch, length] are integers; a run of equal ones is a sequence. The numbers of
/// two sequences of a row differ, except for 0, which is padding. No scores of tokens that do not
/// see each other are computed, except at the edges of a window, and backward keeps no mask.
/// Differentiable twice.
REDCO_API at::Tensor segment_attention(const at::Tensor& query, const at::Tensor& key,
                                       const at::Tensor& value,
                                       const std::optional<at::Tensor>& segment_ids,
                                       std::optional<int64_t> window,
                                       std::optional<double> scale = std::nullopt);

/// Which tokens (the last dimension) a token sees there: booleans [batch or 1, 1, length, length].
REDCO_API at::Tensor segment_mask(const at::Tensor& query,
                                  const std::optional<at::Tensor>& segment_ids,
                                  std::optional<int64_t> window);

/// Whether segment_attention needs no mask for heads of the dtype and device of x. Otherwise each
/// call makes one.
REDCO_API bool has_segment_attention(const at::Tensor& x);

}  // namespace redco
