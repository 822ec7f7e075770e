// The kernels that round to 8 bits on GPUs, compiled for the CPU, beside LibTorch's conversions.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cstdint>

#include "cuda_on_cpu.h"

namespace {

#include "../../engine/kernels/float8.cu"

constexpr float factor = 0.25F;

// All numbers of bfloat16 that stay finite in 8 bits, and NaN.
at::Tensor numbers(at::ScalarType dtype) {
  at::Tensor all = at::arange(1 << 16, at::kInt).to(at::kShort).view(at::kBFloat16);
  const double most = (dtype == at::kFloat8_e4m3fn ? 448 : 57344) / factor;
  return at::where(all.abs() <= most, all, at::full_like(all, NAN)).view({256, 256});
}

template <class Rows, class Columns>
void compare(at::ScalarType dtype, Rows rows_to, Columns columns_to) {
  const at::Tensor x = numbers(dtype), expected = (x * factor).to(dtype).to(at::kFloat);
  at::Tensor rows = at::empty({256, 256}, at::kByte), columns = at::empty_like(rows);
  const auto* from = static_cast<const Pack<u16>*>(x.const_data_ptr());
  for (blockIdx.x = 0; blockIdx.x <= 256 * 32; ++blockIdx.x) {  // one more than there are
    rows_to(from, &factor, static_cast<u64*>(rows.mutable_data_ptr()), 256 * 32);
    columns_to(from, &factor, static_cast<Pack<u32>*>(columns.mutable_data_ptr()), 256, 32);
  }
  for (const at::Tensor& bytes : {rows, columns.t()})
    CHECK(at::allclose(bytes.view(dtype).to(at::kFloat), expected, 0, 0, /*equal_nan=*/true));
}

}  // namespace

TEST_CASE("bfloat16 to float8, by rows and by columns") {
  compare(at::kFloat8_e4m3fn, rows_to_e4m3, columns_to_e4m3);
  compare(at::kFloat8_e5m2, rows_to_e5m2, columns_to_e5m2);
}
