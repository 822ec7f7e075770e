// Sixteen floats or integers in registers of REDCO_WIDTH lanes: block_types.cpp includes this in a
// namespace for each instruction set, AVX-512 with 16 lanes, AVX2 with 8, and any other with 4.

constexpr int n_lanes = 16;

// Halves rather than an array of registers, which compilers would keep in memory.
template <class T, int n>
struct Lanes {
  Lanes<T, n / 2> low, high;
};
template <class T>
struct Lanes<T, REDCO_WIDTH> {
  typedef T Part __attribute__((vector_size(4 * REDCO_WIDTH)));
  Part part;
};
using Floats = Lanes<float, n_lanes>;
using Ints = Lanes<int32_t, n_lanes>;
using FloatPart = Lanes<float, REDCO_WIDTH>::Part;
using IntPart = Lanes<int32_t, REDCO_WIDTH>::Part;

#define REDCO_OPERATOR(op, T)                                                        \
  template <int n>                                                                   \
  REDCO_INLINE Lanes<T, n> operator op(const Lanes<T, n>& a, const Lanes<T, n>& b) { \
    if constexpr (n == REDCO_WIDTH)                                                  \
      return {a.part op b.part};                                                     \
    else                                                                             \
      return {a.low op b.low, a.high op b.high};                                     \
  }                                                                                  \
  template <int n>                                                                   \
  REDCO_INLINE Lanes<T, n> operator op(const Lanes<T, n>& a, T b) {                  \
    if constexpr (n == REDCO_WIDTH)                                                  \
      return {a.part op b};                                                          \
    else                                                                             \
      return {a.low op b, a.high op b};                                              \
  }
REDCO_OPERATOR(&, int32_t)
REDCO_OPERATOR(|, int32_t)
REDCO_OPERATOR(<<, int32_t)
REDCO_OPERATOR(>>, int32_t)
REDCO_OPERATOR(-, int32_t)
REDCO_OPERATOR(+, float)
REDCO_OPERATOR(-, float)
REDCO_OPERATOR(*, float)
#undef REDCO_OPERATOR

// Loads register by register: a copy of all lanes at once would go through memory.
template <class T, int n = n_lanes>
REDCO_INLINE Lanes<T, n> load(const T* from) {
  if constexpr (n > REDCO_WIDTH) {
    return {load<T, n / 2>(from), load<T, n / 2>(from + n / 2)};
  } else {
    Lanes<T, n> lanes;
    std::memcpy(&lanes, from, sizeof(lanes));
    return lanes;
  }
}

template <class T, int n>
REDCO_INLINE void store(const Lanes<T, n>& lanes, T* to) {
  if constexpr (n > REDCO_WIDTH) {
    store(lanes.low, to);
    store(lanes.high, to + n / 2);
  } else {
    std::memcpy(to, &lanes, sizeof(lanes));
  }
}

template <int n>
REDCO_INLINE Lanes<float, n> to_floats(const Lanes<int32_t, n>& a) {
  if constexpr (n == REDCO_WIDTH)
    return {__builtin_convertvector(a.part, FloatPart)};
  else
    return {to_floats(a.low), to_floats(a.high)};
}

// unsigned_bytes and signed_bytes: 16 bytes, one in each lane.
// bytes_of_pairs: 8 bytes, each in two neighbouring lanes.
// look_up: the elements of a table that the lowest four bits of the lanes number.
// gather: the elements of a longer table.
// add_product: sum + a b, rounded once where the instruction set can.

#if REDCO_WIDTH == 16

REDCO_INLINE __m128i load_16(const Byte* bytes) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
}
REDCO_INLINE Ints unsigned_bytes(const Byte* bytes) {
  return {IntPart(_mm512_cvtepu8_epi32(load_16(bytes)))};
}
REDCO_INLINE Ints signed_bytes(const Byte* bytes) {
  return {IntPart(_mm512_cvtepi8_epi32(load_16(bytes)))};
}
REDCO_INLINE Ints bytes_of_pairs(const Byte* bytes) {
  const __m512i once = _mm512_cvtepu8_epi64(_mm_cvtsi64_si128(read<int64_t>(bytes)));
  return {IntPart(_mm512_or_si512(once, _mm512_slli_epi64(once, 32)))};
}
REDCO_INLINE Floats look_up(const Floats& table, const Ints& lanes) {
  return {FloatPart(_mm512_permutexvar_ps(__m512i(lanes.part), __m512(table.part)))};
}
REDCO_INLINE Floats gather(const float* table, const Ints& lanes) {
  return {FloatPart(_mm512_i32gather_ps(__m512i(lanes.part), table, 4))};
}
REDCO_INLINE Floats add_product(const Floats& sum, const Floats& a, const Floats& b) {
  return {FloatPart(_mm512_fmadd_ps(__m512(a.part), __m512(b.part), __m512(sum.part)))};
}

#elif REDCO_WIDTH == 8

REDCO_INLINE __m128i load_8(const Byte* bytes) { return _mm_cvtsi64_si128(read<int64_t>(bytes)); }
REDCO_INLINE Ints unsigned_bytes(const Byte* bytes) {
  return {IntPart(_mm256_cvtepu8_epi32(load_8(bytes))),
          IntPart(_mm256_cvtepu8_epi32(load_8(bytes + 8)))};
}
REDCO_INLINE Ints signed_bytes(const Byte* bytes) {
  return {IntPart(_mm256_cvtepi8_epi32(load_8(bytes))),
          IntPart(_mm256_cvtepi8_epi32(load_8(bytes + 8)))};
}
REDCO_INLINE IntPart bytes_of_4_pairs(const Byte* bytes) {
  const __m256i once = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(read<int32_t>(bytes)));
  return IntPart(_mm256_or_si256(once, _mm256_slli_epi64(once, 32)));
}
REDCO_INLINE Ints bytes_of_pairs(const Byte* bytes) {
  return {bytes_of_4_pairs(bytes), bytes_of_4_pairs(bytes + 4)};
}
REDCO_INLINE FloatPart look_up_part(const Floats& table, const IntPart& lanes) {
  const __m256 low = _mm256_permutevar8x32_ps(__m256(table.low.part), __m256i(lanes));
  const __m256 high = _mm256_permutevar8x32_ps(__m256(table.high.part), __m256i(lanes));
  const __m256 is_high = _mm256_castsi256_ps(_mm256_slli_epi32(__m256i(lanes), 28));
  return FloatPart(_mm256_blendv_ps(low, high, is_high));
}
REDCO_INLINE Floats look_up(const Floats& table, const Ints& lanes) {
  return {look_up_part(table, lanes.low.part), look_up_part(table, lanes.high.part)};
}
REDCO_INLINE Floats gather(const float* table, const Ints& lanes) {
  return {FloatPart(_mm256_i32gather_ps(table, __m256i(lanes.low.part), 4)),
          FloatPart(_mm256_i32gather_ps(table, __m256i(lanes.high.part), 4))};
}
REDCO_INLINE FloatPart add_product(const FloatPart& sum, const FloatPart& a, const FloatPart& b) {
  return FloatPart(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(sum)));
}
REDCO_INLINE Floats add_product(const Floats& sum, const Floats& a, const Floats& b) {
  return {add_product(sum.low.part, a.low.part, b.low.part),
          add_product(sum.high.part, a.high.part, b.high.part)};
}

#else

template <class Function>
REDCO_INLINE Ints each_lane(const Function& function) {
  int32_t values[n_lanes];
  for (int i = 0; i < n_lanes; ++i) values[i] = function(i);
  return load(values);
}
REDCO_INLINE Ints unsigned_bytes(const Byte* bytes) {
  return each_lane([=](int i) REDCO_LAMBDA { return bytes[i]; });
}
REDCO_INLINE Ints signed_bytes(const Byte* bytes) {
  return each_lane([=](int i) REDCO_LAMBDA { return int8_t(bytes[i]); });
}
REDCO_INLINE Ints bytes_of_pairs(const Byte* bytes) {
  return each_lane([=](int i) REDCO_LAMBDA { return bytes[i / 2]; });
}
REDCO_INLINE Floats gather(const float* table, const Ints& lanes) {
  int32_t numbers[n_lanes];
  float found[n_lanes];
  store(lanes, numbers);
  for (int i = 0; i < n_lanes; ++i) found[i] = table[numbers[i]];
  return load(found);
}
REDCO_INLINE Floats look_up(const Floats& table, const Ints& lanes) {
  float values[n_lanes];
  store(table, values);
  return gather(values, lanes & 15);
}
REDCO_INLINE Floats add_product(const Floats& sum, const Floats& a, const Floats& b) {
  return sum + a * b;
}

#endif
