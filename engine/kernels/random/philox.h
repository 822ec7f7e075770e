#pragma once

#include <array>
#include <cstdint>

namespace redco::random {

/// Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
/// SC'11): a bijection of 128-bit counters, selected by a 64-bit key. It gives random access to the
/// elements of a stream.
namespace philox {

using Block = std::array<uint32_t, 4>;

constexpr int n_rounds = 10;
constexpr uint32_t multipliers[2] = {0xD2511F53, 0xCD9E8D57};
constexpr uint32_t key_steps[2] = {0x9E3779B9, 0xBB67AE85};

constexpr Block block(Block c, uint64_t key) {
  auto k0 = uint32_t(key), k1 = uint32_t(key >> 32);
  for (int round = 0; round < n_rounds; ++round) {
    uint64_t a = uint64_t(multipliers[0]) * c[0], b = uint64_t(multipliers[1]) * c[2];
    c = {uint32_t(b >> 32) ^ c[1] ^ k0, uint32_t(b), uint32_t(a >> 32) ^ c[3] ^ k1, uint32_t(a)};
    k0 += key_steps[0];
    k1 += key_steps[1];
  }
  return c;
}

/// The purpose of a derived key. Streams of numbers have 0 in the counter's last two words, so no
/// key ever occurs in a stream.
enum class Purpose : uint32_t { draw = 1, split = 2, fold_in = 3 };

/// Derives a key from another one and a number.
constexpr uint64_t derive(uint64_t key, Purpose purpose, uint64_t number) {
  Block c = block({uint32_t(number), uint32_t(number >> 32), 0, uint32_t(purpose)}, key);
  return c[0] | uint64_t(c[1]) << 32;
}

}  // namespace philox

}  // namespace redco::random
