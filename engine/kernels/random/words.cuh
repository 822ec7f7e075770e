// The words of a stream of random numbers, at the places of a dense tensor. CMake inserts this file
// for #include lines.

namespace {

constexpr int n_dims = 8;
struct Dims {
  i64 of[n_dims];
};

// The words of a stream, and the positions of the local tensor's elements; see places.h.
struct Words {
  u64 key;
  i64 first, run_length;
  int n_outer;
  Dims sizes, strides;
};

struct Block {
  u32 a, b, c, d;
};

__device__ Block philox(u64 number, u64 key) {
  u32 c0 = u32(number), c1 = u32(number >> 32), c2 = 0, c3 = 0, k0 = u32(key), k1 = u32(key >> 32);
  for (int round = 0; round < 10; ++round) {
    u64 a = u64(0xD2511F53u) * c0, b = u64(0xCD9E8D57u) * c2;
    c0 = u32(b >> 32) ^ c1 ^ k0;
    c1 = u32(b);
    c2 = u32(a >> 32) ^ c3 ^ k1;
    c3 = u32(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

// Consecutive places, starting at the place of an element.
struct Run {
  i64 place, length;
};

__device__ Run run_at(const Words& words, i64 element, i64 n) {
  if (words.n_outer == 0) return {words.first + element, n - element};
  i64 run = element / words.run_length;
  const i64 in_run = element - run * words.run_length;
  i64 place = words.first + in_run;
#pragma unroll 1
  for (int d = words.n_outer - 1; d > 0; run /= words.sizes.of[d--])
    place += run % words.sizes.of[d] * words.strides.of[d];
  return {place + run * words.strides.of[0], words.run_length - in_run};
}

// The number of elements whose bits are in one block.
template <class Bits>
constexpr int n_in_block = int(sizeof(Block) / sizeof(Bits));

// The bits at a place, from the block that has them.
template <class Bits>
__device__ Bits bits_at(const Block& block, u64 place) {
  const u32 i = u32(place % n_in_block<Bits>);
  if constexpr (sizeof(Bits) == 8)
    return i == 0 ? block.a | u64(block.b) << 32 : block.c | u64(block.d) << 32;
  else
    return i < 2 ? (i == 0 ? block.a : block.b) : (i == 2 ? block.c : block.d);
}

}  // namespace
