#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace redco::random {

/// The stream of a key: words 4 b .. 4 b + 3 are Philox's block b. `words` writes n of them,
/// starting at word `first`.
REDCO_API void words(uint32_t* out, uint64_t first, int64_t n, uint64_t key);

/// The same words by tensor operators, for any device. `places` and the result are int64 of the
/// same shape; the result is word `place`, in 0 .. 2^32 - 1.
REDCO_API at::Tensor words_at(const at::Tensor& places, uint64_t key);

/// Words 2 `place` (the low half) and 2 `place` + 1 as one 64-bit number.
REDCO_API at::Tensor wide_words_at(const at::Tensor& places, uint64_t key);

}  // namespace redco::random
