#pragma once

#include <cstdint>
#include <initializer_list>

namespace redco::train {

/// Streams of a Deployer's random numbers, which must not meet.
constexpr uint64_t user_stream = 0, trainer_stream = 1, alone_stream = 2;

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): small, portable, and good enough to choose
/// seeds and to shuffle.
class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t state) : state_(state) {}

  uint64_t operator()() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

/// A seed for one place in a run, such as (step, micro-batch): well mixed, and the same on every
/// machine.
inline uint64_t derive_seed(uint64_t seed, std::initializer_list<uint64_t> place) {
  for (uint64_t number : place) seed = SplitMix64(SplitMix64(seed)() ^ number)();
  return seed;
}

}  // namespace redco::train
