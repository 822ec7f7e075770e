// The random words of a stream, by Philox.

#include "words.h"

#include "../vectorize.h"
#include "philox.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <array>

namespace redco::random {

namespace {

constexpr int lanes = 64;  // few enough for the L1 cache, too many to be unrolled

// Computes `lanes` blocks from block `first` on, in parallel.
REDCO_VECTORIZE
void blocks(uint32_t* out, uint64_t first, uint64_t key) {
  uint32_t c0[lanes], c1[lanes], c2[lanes] = {}, c3[lanes] = {};
  for (int i = 0; i < lanes; ++i) {
    uint64_t number = first + uint64_t(i);
    c0[i] = uint32_t(number);
    c1[i] = uint32_t(number >> 32);
  }
  auto k0 = uint32_t(key), k1 = uint32_t(key >> 32);
  for (int round = 0; round < philox::n_rounds; ++round) {
    for (int i = 0; i < lanes; ++i) {
      uint64_t a = uint64_t(philox::multipliers[0]) * c0[i];
      uint64_t b = uint64_t(philox::multipliers[1]) * c2[i];
      c0[i] = uint32_t(b >> 32) ^ c1[i] ^ k0;
      c1[i] = uint32_t(b);
      c2[i] = uint32_t(a >> 32) ^ c3[i] ^ k1;
      c3[i] = uint32_t(a);
    }
    k0 += philox::key_steps[0];
    k1 += philox::key_steps[1];
  }
  for (int i = 0; i < lanes; ++i) {
    out[4 * i] = c0[i];
    out[4 * i + 1] = c1[i];
    out[4 * i + 2] = c2[i];
    out[4 * i + 3] = c3[i];
  }
}

constexpr int64_t low_bits = 0xFFFFFFFF;

// Philox on int64 tensors of words. Overflow does not affect the bits of the products.
std::array<at::Tensor, 4> blocks_at(const at::Tensor& number, uint64_t key) {
  at::Tensor zero = number.new_zeros({});
  std::array<at::Tensor, 4> c = {number.bitwise_and(low_bits),
                                 number.bitwise_right_shift(32).bitwise_and(low_bits), zero, zero};
  auto k0 = uint32_t(key), k1 = uint32_t(key >> 32);
  for (int round = 0; round < philox::n_rounds; ++round) {
    at::Tensor a = c[0].mul(int64_t(philox::multipliers[0]));
    at::Tensor b = c[2].mul(int64_t(philox::multipliers[1]));
    auto high = [](const at::Tensor& product) {
      return product.bitwise_right_shift(32).bitwise_and_(low_bits);
    };
    c = {high(b).bitwise_xor(c[1]).bitwise_xor_(int64_t(k0)), b.bitwise_and(low_bits),
         high(a).bitwise_xor(c[3]).bitwise_xor_(int64_t(k1)), a.bitwise_and(low_bits)};
    k0 += philox::key_steps[0];
    k1 += philox::key_steps[1];
  }
  return c;
}

}  // namespace

void words(uint32_t* out, uint64_t first, int64_t n, uint64_t key) {
  constexpr int64_t at_once = 4 * lanes;
  uint32_t some[at_once];
  while (n > 0) {
    auto skipped = int64_t(first % 4);
    int64_t count = std::min(n, at_once - skipped);
    if (count == at_once) {
      blocks(out, first / 4, key);
    } else {
      if (skipped + count <= 4) {
        philox::Block one = philox::block({uint32_t(first / 4), uint32_t(first / 4 >> 32)}, key);
        std::copy(one.begin(), one.end(), some);
      } else {
        blocks(some, first / 4, key);
      }
      std::copy(some + skipped, some + skipped + count, out);
    }
    out += count;
    first += uint64_t(count);
    n -= count;
  }
}

at::Tensor words_at(const at::Tensor& places, uint64_t key) {
  auto c = blocks_at(places.bitwise_right_shift(2), key);
  at::Tensor word = places.bitwise_and(3);
  return at::where(word.lt(2), at::where(word.eq(0), c[0], c[1]),
                   at::where(word.eq(2), c[2], c[3]));
}

at::Tensor wide_words_at(const at::Tensor& places, uint64_t key) {
  auto c = blocks_at(places.bitwise_right_shift(1), key);
  at::Tensor first = places.bitwise_and(1).eq(0);
  at::Tensor low = at::where(first, c[0], c[2]), high = at::where(first, c[1], c[3]);
  return high.bitwise_left_shift(32).bitwise_or(low);
}

}  // namespace redco::random
