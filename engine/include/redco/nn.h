// Operators of layers, with dedicated kernels.

#pragma once

#include <redco/export.h>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace redco {

/// Computes x weight^T + bias, as at::linear does: x [..., in], weight [out, in], bias [out] or
/// undefined. If no gradient is recorded and x has few rows, as in generation, reading the weight
/// takes most of the time; on the CPU a weight in float32 or bfloat16, in row-major or column-major
/// memory order, is then read once, at memory bandwidth.
REDCO_API at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// Multiplies each row by the weights chosen for it, as mixtures of experts do: y[n, k] = weight e
/// times x[n], with e = numbers[n, k]. x [n, in], or [n, k, in] with a row for each choice; numbers
/// [n, k] of int64; weights [out, in]. Returns [n, k, out]. Each weight is multiplied by its rows
/// only. On sharded tensors a process does so with its rows. Throws Error for shapes and dtypes
/// that do not match, and on a CPU for numbers that are out of range.
REDCO_API at::Tensor grouped_linear(const at::Tensor& x, const at::Tensor& numbers,
                                    at::TensorList weights);

/// The same with quantized weights [out, in / size, bytes] of a type (`block_types()`).
/// Differentiable in x.
REDCO_API at::Tensor grouped_linear(const at::Tensor& x, const at::Tensor& numbers,
                                    at::TensorList weights, const std::string& type);

/// The sum over all labels of the cross-entropy of `x` weight^T + bias, computed without storing
/// all logits: it computes the logits of a block of rows, adds to the loss and the gradients, and
/// drops them. Second-order gradients, and calls inside functorch's transformations, store all
/// logits.
///
/// x is [..., in], weight [classes, in] and bias [classes], of x's floating-point dtype; labels is
/// [...] int64. Labels equal to `ignore_index` do not count. With `label_smoothing` s the target is
/// 1 - s on the label plus s / classes on every class. The result is 0-dimensional, float32 for
/// 16-bit inputs. Throws Error for shapes, dtypes and labels that do not fit.
REDCO_API at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight,
                                          const at::Tensor& labels, int64_t ignore_index = -100,
                                          double label_smoothing = 0.0,
                                          const std::optional<at::Tensor>& bias = {});

/// The log-probability of each label by x weight^T + bias, [...], 0 for labels equal to
/// `ignore_index`: minus the terms of `linear_cross_entropy`, with the same arguments, dtypes and
/// errors. Backward computes the logits again, block by block.
REDCO_API at::Tensor linear_logprobs(const at::Tensor& x, const at::Tensor& weight,
                                     const at::Tensor& labels, int64_t ignore_index = -100,
                                     const std::optional<at::Tensor>& bias = {});

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

/// Rotary positions (arXiv 2104.09864): turns pairs of elements of the rows of x [..., D] by
/// angles, whose cos and sin are [..., n] and broadcast to the rows. Pair i has element i and
/// element n + i, or, if `are_neighbours`, elements 2 i and 2 i + 1. Elements from 2 n on stay.
/// Backward keeps `cos` and `sin` alone. Differentiable any number of times.
REDCO_API at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                            bool are_neighbours = false);

/// silu(gate) * up, the gated activation of LLaMA's layers (SwiGLU, arXiv 2002.05202). Backward
/// keeps `gate` and `up` alone. Differentiable twice.
REDCO_API at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up);

/// Sets each element to 0 with probability p, by a draw of `rng`, and multiplies the others by
/// 1 / (1 - p), rounded to x's dtype. One pass with a CounterGenerator; several operators with
/// another generator, and inside functorch's transformations. Throws Error if p is no probability,
/// and if x is not of a floating-point dtype.
REDCO_API at::Tensor dropout(const at::Tensor& x, double p, const at::Generator& rng);

/// Dropout of the softmax of scores [..., n] * scale + mask over their last dimension: what
/// attention multiplies values by in training. A boolean mask is false where a score does not
/// count. A row without a score that counts is 0. The mask is broadcast to the scores, and `rng`
/// draws what it draws for dropout(softmax, p, rng). One operator each way with a CounterGenerator;
/// several if the mask is trained, with another generator, and inside functorch's transformations.
REDCO_API at::Tensor softmax_dropout(const at::Tensor& scores,
                                     const std::optional<at::Tensor>& mask, double scale, double p,
                                     const at::Generator& rng);

/// Attention in training: softmax_dropout(query key^T) value, of [..., length, size].
REDCO_API at::Tensor dropout_attention(const at::Tensor& query, const at::Tensor& key,
                                       const at::Tensor& value,
                                       const std::optional<at::Tensor>& mask, double scale,
                                       double p, const at::Generator& rng);

}  // namespace redco
