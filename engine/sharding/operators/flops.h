#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <numeric>

namespace redco::sharding {

// The formulas are those of PyTorch's torch.utils.flop_counter, but do not count work that a
// backward repeats (attention's scores). A multiplication and an addition count as two.

using Inputs = c10::ArrayRef<const c10::IValue>;

inline at::IntArrayRef sizes(const Inputs& inputs, size_t index) {
  return inputs[index].toTensor().sizes();
}

inline double product(at::IntArrayRef sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), 1.0, std::multiplies<>());
}

// [..., m, k] x [..., k, n]: the arguments `first` and the one after it.
template <size_t first>
double matrix_product_flops(const Inputs& inputs) {
  return 2 * product(sizes(inputs, first)) * double(sizes(inputs, first + 1).back());
}

// Query [batch, heads, m, d], key [batch, heads, n, d], value [batch, heads, n, dv]: the arguments
// `first` and those after it; two products.
template <size_t first, int times>
double attention_flops(const Inputs& inputs) {
  at::IntArrayRef query = sizes(inputs, first), key = sizes(inputs, first + 1),
                  value = sizes(inputs, first + 2);
  double pairs = product(query) / double(query.back()) * double(key[key.size() - 2]);
  return times * 2 * pairs * double(query.back() + value.back());
}

/// convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
double convolution_flops(const Inputs& inputs);
/// convolution_backward(grad_output, input, weight, bias_sizes, stride, padding, dilation,
/// transposed, output_padding, groups, output_mask)
double convolution_backward_flops(const Inputs& inputs);

}  // namespace redco::sharding
