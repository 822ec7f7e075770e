// The kernels for quantized weights on GPUs, compiled for the CPU, beside the CPU's own.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <redco/quantized.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "cuda_on_cpu.h"

namespace {

#include "../../engine/kernels/quantized/decode.cu"

using Bytes = const u8*;

// Random bytes, whose scales are often not finite.
at::Tensor random_blocks(const redco::BlockType& type, int64_t n_out, int64_t n) {
  return at::randint(0, 256, {n_out, n, type.bytes}, at::kByte);
}

bool are_equal(const at::Tensor& a, const at::Tensor& b) {
  return at::allclose(a.to(at::kFloat), b.to(at::kFloat), 0, 0, /*equal_nan=*/true);
}

template <class Type, class Kernel>
void check_decoding(Kernel kernel, const redco::BlockType& type, at::ScalarType dtype) {
  using Packed = Pack<typename Type::Stored>;
  const at::Tensor blocks = random_blocks(type, 40, 3);
  at::Tensor y = at::empty({40, 3 * type.size}, dtype);
  const i64 n_packs = y.numel() / Packed::n;
  // One block of threads too many.
  blockDim.x = 32;
  for (blockIdx.x = 0; blockIdx.x * 32 < n_packs + 32; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < 32; ++threadIdx.x)
      kernel(blocks.const_data_ptr<u8>(), static_cast<Packed*>(y.data_ptr()), n_packs);
  blockDim.x = 1, threadIdx.x = 0;
  CHECK(are_equal(y, redco::dequantize(blocks, type.name, at::kFloat).to(dtype)));
}

template <class Kernel>
void check_products(Kernel kernel, const redco::BlockType& type) {
  const int64_t n_out = 5, n_in = 3 * type.size;
  at::Tensor blocks = redco::quantize(at::randn({n_out, n_in}), type.name, {});
  const at::Tensor weight = redco::dequantize(blocks, type.name, at::kDouble);
  for (int64_t n_rows : {1, 4, 6}) {
    const at::Tensor x = at::randn({n_rows, n_in});
    at::Tensor y = at::full({n_rows, n_out}, NAN);
    gridDim.x = int(n_out);
    for (blockIdx.y = 0; blockIdx.y * rows_at_once < n_rows; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < n_out; ++blockIdx.x)
        kernel(blocks.const_data_ptr<u8>(), static_cast<const Pack<float>*>(x.const_data_ptr()),
               y.mutable_data_ptr<float>(), 3, n_rows);
    const at::Tensor expected = at::matmul(x.to(at::kDouble), weight.t());
    CHECK(at::allclose(y.to(at::kDouble), expected, 1e-5, 1e-4));
  }
  gridDim.x = 1, blockIdx = {};
}

}  // namespace

TEST_CASE("kernels of GPUs decode each type of blocks as the CPU does") {
  at::manual_seed(1);
#define CHECK_TYPE(name)                                                     \
  {                                                                          \
    const redco::BlockType& type = *redco::find_block_type(#name);           \
    CAPTURE(#name);                                                          \
    check_decoding<Float>(decode_##name##_float, type, at::kFloat);          \
    check_decoding<BFloat16>(decode_##name##_bfloat16, type, at::kBFloat16); \
    check_decoding<Half>(decode_##name##_half, type, at::kHalf);             \
    check_products(multiply_##name, type);                                   \
    ++n_types;                                                               \
  }
  size_t n_types = 0;
  CHECK_TYPE(q8_0)
  CHECK_TYPE(q4_0)
  CHECK_TYPE(q4_1)
  CHECK_TYPE(q5_0)
  CHECK_TYPE(q5_1)
  CHECK_TYPE(q2_k)
  CHECK_TYPE(q3_k)
  CHECK_TYPE(q4_k)
  CHECK_TYPE(q5_k)
  CHECK_TYPE(q6_k)
  CHECK_TYPE(iq4_nl)
  CHECK_TYPE(iq4_xs)
  CHECK_TYPE(mxfp4)
  CHECK_TYPE(int8)
  CHECK_TYPE(int4)
  CHECK_TYPE(fp8)
  CHECK_TYPE(nf4)
  CHECK_TYPE(fp4)
#undef CHECK_TYPE
  CHECK(n_types == redco::block_types().size());
}
