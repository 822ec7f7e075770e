#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <vector>

namespace redco::train {

/// Throws Error unless backward can start at the loss: one floating-point number with a graph.
void check_loss(const at::Tensor& loss);
void check_has_graph(const at::Tensor& loss);

/// Converts to at least float32: a mean of many 16-bit losses would lose most of its digits in 16
/// bits, and float16 cannot represent all token counts above 2048.
at::Tensor for_sums(const at::Tensor& number);

/// The gradient that backward begins with, and what it lacks of the loss's factor: `gradient` *
/// `rest` is the factor. `rest` is undefined unless the loss has 16 bits: bfloat16 would round a
/// weight of 1001 tokens to 1000, and float16 has no 65536.
struct FirstGradient {
  FirstGradient(const at::Tensor& factor, at::ScalarType dtype_of_loss);
  at::Tensor gradient, rest;
};

/// Makes gradients that lack the factor `from` lack `to` instead, in place. An undefined factor
/// is 1. Gradients may be undefined.
void change_missing_factor(const std::vector<at::Tensor>& gradients, const at::Tensor& from,
                           const at::Tensor& to);

/// Must be called before backward from `loss`: lets autograd run the conversions of parameters
/// (casts, transposes, views) as soon as their gradients are complete.
///
/// Autograd runs the newest operators first. Parameters that are cast before the forward pass have
/// the oldest: without this call, the gradients of all copies stay in memory until backward ends,
/// and no parameter has its gradient before.
void run_conversions_early(const at::Tensor& loss);

}  // namespace redco::train
