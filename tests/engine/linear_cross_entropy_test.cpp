// How many rows linear_cross_entropy works on at a time.
#include "../../engine/kernels/linear_cross_entropy.h"

#include <doctest/doctest.h>

namespace redco::kernels {

TEST_CASE("on a CPU a block of logits fits the cache, but has 128 rows at least") {
  CHECK(rows_per_block(c10::kCPU, 1000) == 2097);
  CHECK(rows_per_block(c10::kCPU, 16384) == 128);
  CHECK(rows_per_block(c10::kCPU, 50257) == 128);
  CHECK(rows_per_block(c10::kCPU, 0) == int64_t{1} << 21);
}

TEST_CASE("on a GPU a block of float32 logits has 256 to 512 MB") {
  CHECK(rows_per_block(c10::kCUDA, 32000) == 4096);
  CHECK(rows_per_block(c10::kCUDA, 50257) == 2048);
  CHECK(rows_per_block(c10::kCUDA, 128256) == 1024);
  for (int64_t n_classes = 1; n_classes <= 1 << 20; n_classes = n_classes * 3 / 2 + 1) {
    CAPTURE(n_classes);
    int64_t megabytes = rows_per_block(c10::kCUDA, n_classes) * n_classes * 4 >> 20;
    CHECK(megabytes >= 255);
    CHECK(megabytes <= 512);
  }
  CHECK(rows_per_block(c10::kCUDA, 4 << 20) == 128);
}

}  // namespace redco::kernels
