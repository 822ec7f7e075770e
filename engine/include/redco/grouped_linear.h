#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>

#include <string>

namespace redco {

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

}  // namespace redco
