// The memory that kernels allocate while they run, beside the sizes that were seen on an H100.
#include "../../engine/sharding/operators/gpu_bytes.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <vector>

namespace sharding = redco::sharding;

namespace {

using Stack = std::vector<c10::IValue>;

at::Tensor meta(at::IntArrayRef sizes, at::ScalarType dtype = at::kBFloat16) {
  return at::empty(sizes, at::device(at::kMeta).dtype(dtype));
}

int64_t of_sum(at::IntArrayRef sizes, std::vector<int64_t> dims) {
  at::Tensor x = meta(sizes);
  return sharding::workspace_of_sum(Stack{x, dims, false}, Stack{x.sum(dims)});
}

int64_t of_convolution(at::IntArrayRef x, at::IntArrayRef weight, at::IntArrayRef y,
                       at::ScalarType dtype = at::kBFloat16) {
  int64_t bytes = sharding::workspace_of_convolution(Stack{meta(x, dtype), meta(weight, dtype)},
                                                     Stack{meta(y, dtype)});
  CHECK(sharding::workspace_of_convolution_backward(
            Stack{meta(y, dtype), meta(x, dtype), meta(weight, dtype)}, {}) == bytes);
  return bytes;
}

}  // namespace

TEST_CASE("a sum over many rows") {
  CHECK(of_sum({8, 1024, 3072}, {0, 1}) == 138'412'032);
  CHECK(of_sum({8192, 2304}, {0}) == 139'198'464);
  CHECK(of_sum({8192, 768}, {0}) == 50'331'648);
  CHECK(of_sum({8, 8, 1024, 1024}, {0}) == 0);  // few rows
  CHECK(of_sum({8192, 768}, {-1}) == 0);
  CHECK(of_sum({8192, 768}, {}) == 0);
}

TEST_CASE("a convolution in 16 bits, by copies with the channels last") {
  CHECK(of_convolution({64, 64, 32, 32}, {128, 64, 3, 3}, {64, 128, 32, 32}) == 25'313'280);
  CHECK(of_convolution({32, 3, 224, 224}, {64, 3, 7, 7}, {32, 64, 112, 112}) ==
        2 * (32 * 8 * 224 * 224 + 64 * 8 * 49 + 32 * 64 * 112 * 112));
  CHECK(of_convolution({32, 64, 56, 56}, {256, 64, 1, 1}, {32, 256, 56, 56}) == 0);
  CHECK(of_convolution({32, 96, 56, 56}, {96, 1, 7, 7}, {32, 96, 56, 56}) == 0);
  CHECK(of_convolution({64, 64, 32, 32}, {128, 64, 3, 3}, {64, 128, 32, 32}, at::kFloat) == 0);
}

TEST_CASE("the gradient of attention's queries in float32") {
  at::Tensor heads = meta({8, 12, 1024, 64});
  CHECK(sharding::workspace_of_attention_backward(Stack{heads, heads}, {}) == 25'559'040);
}
