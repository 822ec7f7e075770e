#include "gpu_bytes.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>

#include <algorithm>

namespace redco::sharding {

namespace {

int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// cuDNN copies 16-bit tensors into channels-last memory, with channels in units of 8. In float32
// some of the algorithms that it chooses from need nothing, and some ten times as much.
int64_t of_convolution(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& y) {
  const bool is_separate = weight.size(1) == 1 && x.size(1) > 1;
  const bool is_product = weight.numel() == weight.size(0) * weight.size(1);
  if (x.element_size() != 2 || is_separate || is_product ||
      x.suggest_memory_format() != at::MemoryFormat::Contiguous)
    return 0;
  int64_t n_elements = 0;
  for (const at::Tensor* tensor : {&x, &weight, &y})
    n_elements += tensor->numel() / tensor->size(1) * 8 * divided_up(tensor->size(1), 8);
  return 2 * n_elements;
}

}  // namespace

int64_t workspace_of_convolution(Values arguments, Values results) {
  return of_convolution(arguments[0].toTensor(), arguments[1].toTensor(), results[0].toTensor());
}

int64_t workspace_of_convolution_backward(Values arguments, Values) {
  return of_convolution(arguments[1].toTensor(), arguments[2].toTensor(), arguments[0].toTensor());
}

// Holds the gradient of the queries, which is summed in float32, and one number per query.
int64_t workspace_of_attention_backward(Values arguments, Values) {
  const at::Tensor& query = arguments[1].toTensor();
  return 4 * (query.numel() + query.numel() / query.size(-1));
}

// A sum over rows, such as of the gradient of a bias: blocks of 32 x 4 threads, which have four
// outputs each, share the rows of an output and leave a float for each of these
// (ATen/native/cuda/Reduce.cuh).
int64_t workspace_of_sum(Values arguments, Values results) {
  const at::Tensor &x = arguments[0].toTensor(), &sum = results[0].toTensor();
  if (arguments.size() < 2 || !arguments[1].isIntList() || sum.numel() == 0 || !x.is_contiguous())
    return 0;
  for (int64_t dim : arguments[1].toIntVector())
    if (at::maybe_wrap_dim(dim, x.dim()) == x.dim() - 1) return 0;
  constexpr int64_t n_blocks = 132 * 16;  // blocks that fit on the multiprocessors at once
  constexpr int64_t outputs_of_block = 32 * 4, rows_at_once = 4;
  constexpr int64_t least_values = 16, most_values = 256;  // of each thread
  const int64_t n_outputs = sum.numel(), n_values = x.numel() / n_outputs / rows_at_once;
  if (n_values < most_values || n_outputs < outputs_of_block) return 0;
  const int64_t n_sharing = std::max(
      std::min(divided_up(n_blocks, n_outputs / outputs_of_block), n_values / least_values),
      n_values / most_values);
  return n_sharing > 1 ? 4 * n_outputs * n_sharing * outputs_of_block : 0;
}

// The operator writes and reads logits. A product and a kernel write them; two products and two
// kernels read them.
int64_t inside_linear_cross_entropy(Values arguments, Values) {
  const at::Tensor &x = arguments[0].toTensor(), &weight = arguments[1].toTensor();
  return 6 * x.size(0) * weight.size(0) * int64_t(x.element_size());
}

}  // namespace redco::sharding
