// Rotary positions on GPUs: the kernels of rotary.cpp, which are compiled where they run. A
// block of threads turns the heads of one position, in float.

#include "element_types.cuh"
#include "packs.cuh"

namespace {

// x and y [batch, heads, positions, size], cos and sin, whose strides are 0 where they broadcast.
// Strides and sizes of rows are in packs.
struct TurnedHeads {
  i64 x_batch, x_head, x_position;
  i64 y_batch, y_head, y_position;
  i64 angle_batch, angle_head, angle_position;
  u32 n_heads, n_positions;
  u32 n_angles, n_rest;  // of a row: of cos, and of elements that stay
  float sign;            // of sin
};

template <class Type>
__device__ void turn_pair(typename Type::Stored& first, typename Type::Stored& second,
                          typename Type::Stored cos, float sin) {
  const float a = Type::wide(first), b = Type::wide(second), c = Type::wide(cos);
  first = Type::narrow(a * c - b * sin);
  second = Type::narrow(b * c + a * sin);
}

template <class Type, bool are_neighbours>
__device__ void turn_heads(const Pack<typename Type::Stored>* x,
                           const Pack<typename Type::Stored>* cos,
                           const Pack<typename Type::Stored>* sin, Pack<typename Type::Stored>* y,
                           const TurnedHeads& heads) {
  typedef Pack<typename Type::Stored> Packed;
  const u32 batch = blockIdx.x / heads.n_positions, position = blockIdx.x % heads.n_positions;
  const u32 n_of_row = heads.n_angles + heads.n_rest;
  x += batch * heads.x_batch + position * heads.x_position;
  y += batch * heads.y_batch + position * heads.y_position;
  const i64 angles = batch * heads.angle_batch + position * heads.angle_position;
  for (u32 i = threadIdx.x; i < heads.n_heads * n_of_row; i += blockDim.x) {
    const u32 head = i / n_of_row, place = i % n_of_row;
    const Packed* from = x + head * heads.x_head;
    Packed* to = y + head * heads.y_head;
    if (place >= heads.n_angles) {
      to[heads.n_angles + place] = from[heads.n_angles + place];
      continue;
    }
    const u32 first = are_neighbours ? 2 * place : place;
    const u32 second = are_neighbours ? first + 1 : place + heads.n_angles;
    Packed a = from[first], b = from[second];
    const Packed c = cos[angles + head * heads.angle_head + place];
    const Packed s = sin[angles + head * heads.angle_head + place];
    for (int k = 0; k < Packed::n; ++k) {
      const float turned_sin = heads.sign * Type::wide(s.of[k]);
      const int half = Packed::n / 2, pair = 2 * (k % half);
      Packed& both = k < half ? a : b;
      if (are_neighbours)
        turn_pair<Type>(both.of[pair], both.of[pair + 1], c.of[k], turned_sin);
      else
        turn_pair<Type>(a.of[k], b.of[k], c.of[k], turned_sin);
    }
    to[first] = a;
    to[second] = b;
  }
}

}  // namespace

#define KERNELS(type, Type)                                                                      \
  extern "C" __global__ void rotary_halves_##type(                                               \
      const Pack<Type::Stored>* x, const Pack<Type::Stored>* cos, const Pack<Type::Stored>* sin, \
      Pack<Type::Stored>* y, TurnedHeads heads) {                                                \
    turn_heads<Type, false>(x, cos, sin, y, heads);                                              \
  }                                                                                              \
  extern "C" __global__ void rotary_neighbours_##type(                                           \
      const Pack<Type::Stored>* x, const Pack<Type::Stored>* cos, const Pack<Type::Stored>* sin, \
      Pack<Type::Stored>* y, TurnedHeads heads) {                                                \
    turn_heads<Type, true>(x, cos, sin, y, heads);                                               \
  }
KERNELS(float, Float)
KERNELS(bfloat16, BFloat16)
KERNELS(half, Half)
#undef KERNELS
