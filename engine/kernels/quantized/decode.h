// Decodes blocks of quantized numbers, with the lanes of lanes.h.
//
// A decoder is a struct with the sizes of its block and `decode(bytes, put)`, which calls
// put(i, values) for elements [i, i + 16), in ascending order: a product adds them up in that
// order, as few_rows.cpp does. Kernels take it as a template argument, so that it becomes part of
// their loops. Products and sums of an element are not fused: values are the same with every
// instruction set.

REDCO_INLINE float half_at(const Byte* bytes) { return half_values[read<uint16_t>(bytes)]; }

// The indices of a table of `period` elements, repeated over the lanes.
template <int period = 16>
REDCO_INLINE Floats steps() {
  float values[n_lanes];
  for (int i = 0; i < n_lanes; ++i) values[i] = float(i % period);
  return load(values);
}

REDCO_INLINE Ints lane_numbers() {
  int32_t values[n_lanes];
  for (int i = 0; i < n_lanes; ++i) values[i] = i;
  return load(values);
}

// Elements [i, i + 32) of 16 bytes: the first 16 are the low nibbles.
template <class Put>
REDCO_INLINE void put_nibbles(const Byte* bytes, const Floats& table, int i, const Put& put) {
  const Ints q = unsigned_bytes(bytes);
  put(i, look_up(table, q));
  put(i + n_lanes, look_up(table, q >> 4));
}

// x = q scale
struct Q8_0 {
  static constexpr int size = 32, bytes = 34;
  template <class Put>
  static REDCO_INLINE void decode(const Byte* b, const Put& put) {
    const float scale = half_at(b);
    for (int i = 0; i < size; i += n_lanes) put(i, to_floats(signed_bytes(b + 2 + i)) * scale);
  }
};

// x = (q - 8) scale
struct Q4_0 {
  static constexpr int size = 32, bytes = 18;
  template <class Put>
  static REDCO_INLINE void decode(const Byte* b, const Put& put) {
    put_nibbles(b + 2, (steps() - 8) * half_at(b), 0, put);
  }
};

// x = q scale + least
struct Q4_1 {
  static constexpr int size = 32, bytes = 20;
  template <class Put>
  static REDCO_INLINE void decode(const Byte* b, const Put& put) {
    put_nibbles(b + 4, steps() * half_at(b) + half_at(b + 2), 0, put);
  }
};

// Decodes numbers of 5 bits: nibbles, after 32 bits that are the fifth bits.
template <class Put>
REDCO_INLINE void put_five_bits(const Byte* bytes, const Put& put) {
  const Ints q = unsigned_bytes(bytes + 4);
  const Ints fifth = (Ints{} | read<int32_t>(bytes)) >> lane_numbers();
  put(0, (q & 15) | (fifth << 4 & 16));
  put(n_lanes, q >> 4 | (fifth >> 12 & 16));
}

// x = (q - 16) scale
struct Q5_0 {
  static constexpr int size = 32, bytes = 22;
  template <class Put>
  static REDCO_INLINE void decode(const Byte* b, const Put& put) {
    const float scale = half_at(b);
    put_five_bits(b + 2,
                  [&](int i, const Ints& q) REDCO_LAMBDA { put(i, to_floats(q - 16) * scale); });
  }
};

// x = q scale + least
struct Q5_1 {
  static constexpr int size = 32, bytes = 24;
  template <class Put>
  static REDCO_INLINE void decode(const Byte* b, const Put& put) {
    const float scale = half_at(b), least = half_at(b + 2);
    put_five_bits(b + 4,
                  [&](int i, const Ints& q) REDCO_LAMBDA { put(i, to_floats(q) * scale + least); });
  }
};

// Reads two bits for each element of 16 groups of 16, from 64 bytes. Calls put(group, bits); only
// the two lowest bits of `bits` count.
template <class Put>
REDCO_INLINE void for_each_two_bits(const Byte* bytes, const Put& put) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const Ints fours[] = {unsigned_bytes(bytes + half * 32),
                          unsigned_bytes(bytes + half * 32 + 16)};
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) put(half * 8 + i, fours[i % 2] >> i / 2 * 2);
  }
}

// 16 groups of 16 elements. x = q (scale s) - (least m), with s and m of 4 bits.
struct Q2_K {
  static constexpr int size = 256, bytes = 84;
  template <class Put>
  static REDCO_INLINE void decode(const Byte* b, const Put& put) {
    const float scale = half_at(b + 80), least = half_at(b + 82);
    for_each_two_bits(b + 16, [&](int group, const Ints& q) REDCO_LAMBDA {
      const float s = scale * float(b[group] & 15), m = least * float(b[group] >> 4);
      put(group * 16, look_up(steps<4>() * s - m, q));
    });
  }
};

// 16 groups of 16 elements. x = q (scale s), with s of 6 bits; the third bit of q is inverted.
struct Q3_K {
  static constexpr int size = 256, bytes = 110;
  static REDCO_INLINE int scale_of(const Byte* packed, int group) {
    const int four = group < 8 ? packed[group] & 15 : packed[group - 8] >> 4;
    return (four | (packed[8 + group % 4] >> group / 4 * 2 & 3) << 4) - 32;
  }
  template <class Put>
  static REDCO_INLINE void decode(const Byte* b, const Put& put) {
    const float scale = half_at(b + 108);
    const Ints bits[] = {unsigned_bytes(b), unsigned_bytes(b + 16)};
    for_each_two_bits(b + 32, [&](int group, const Ints& q) REDCO_LAMBDA {
      const float s = scale * float(scale_of(b + 96, group));
      const Ints third = bits[group % 2] >> group / 2 << 2;
      put(group * 16, look_up((steps<8>() - 4) * s, (q & 3) | (third & 4)));
    });
  }
};

// The scales and the least numbers of 8 groups, of 6 bits each, times those of the block.
struct ScalesOf8 {
  float scale[n_lanes];  // of group i
  float least[n_lanes];  // of group i - 8

  REDCO_INLINE ScalesOf8(const Byte* halves, const Byte* packed) {
    const auto a = read<uint32_t>(packed), b = read<uint32_t>(packed + 4);
    const auto upper = read<uint32_t>(packed + 8);
    const uint32_t all[] = {a & 0x3f3f3f3f, (upper & 0x0f0f0f0f) | (a >> 2 & 0x30303030),
                            b & 0x3f3f3f3f, (upper >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030)};
    const Floats numbers = to_floats(unsigned_bytes(reinterpret_cast<const Byte*>(all)));
    store(numbers * half_at(halves), scale);
    store(numbers * half_at(halves + 2), least);
  }
  // The values of a group's numbers `q`.
  REDCO_INLINE Floats values(const Floats& q, int group) const {
    return q * scale[group] - least[group + 8];
  }
};

// 8 groups of 32 elements. x = q (scale s) - (least m)
struct Q4_K {
  static constexpr int size = 256, bytes = 144;
  template <class Put>
  static REDCO_INLINE void decode(const Byte* b, const Put& put) {
    const ScalesOf8 scales(b, b + 4);
#pragma GCC unroll 8
    for (int group = 0; group < 8; group += 2) {
      const Floats low = scales.values(steps(), group), high = scales.values(steps(), group + 1);
      const Byte* bytes_of_two = b + 16 + group * 16;
      const Ints q[] = {unsigned_bytes(bytes_of_two), unsigned_bytes(bytes_of_two + n_lanes)};
      for (int i = 0; i < 2; ++i) put(group * 32 + i * n_lanes, look_up(low, q[i]));
      for (int i = 0; i < 2; ++i) put(group * 32 + 32 + i * n_lanes, look_up(high, q[i] >> 4));
    }
  }
};

struct Q5_K {
  static constexpr int size = 256, bytes = 176;
  template <class Put>
  static REDCO_INLINE void decode(const Byte* b, const Put& put) {
    const ScalesOf8 scales(b, b + 4);
    const Ints fifth[] = {unsigned_bytes(b + 16), unsigned_bytes(b + 32)};
#pragma GCC unroll 8
    for (int group = 0; group < 8; ++group) {
      for (int i = 0; i < 2; ++i) {
        const Ints q = unsigned_bytes(b + 48 + group / 2 * 32 + i * 16) >> group % 2 * 4 & 15;
        const Ints number = q | (fifth[i] >> group << 4 & 16);
        put(group * 32 + i * 16, scales.values(to_floats(number), group));
      }
    }
  }
};

// 16 groups of 16 elements. x = q (scale s), with s of 8 bits and q of 6.
struct Q6_K {
  static constexpr int size = 256, bytes = 210;
  template <class Put>
  static REDCO_INLINE void decode(const Byte* b, const Put& put) {
    float scales[n_lanes];
    store(to_floats(signed_bytes(b + 192)) * half_at(b + 208), scales);
#pragma GCC unroll 16
    for (int group = 0; group < 16; ++group) {
      const int half = group / 8, part = group % 8 / 2, begin = group % 2 * 16;
      const Ints lower = unsigned_bytes(b + half * 64 + part % 2 * 32 + begin);
      const Ints upper = unsigned_bytes(b + 128 + half * 32 + begin);
      const Ints number = (lower >> part / 2 * 4 & 15) | (upper >> part * 2 << 4 & 48);
      put(group * 16, to_floats(number - 32) * scales[group]);
    }
  }
};

// x = value[q] scale
struct Iq4Nl {
  static constexpr int size = 32, bytes = 18;
  template <class Put>
  static REDCO_INLINE void decode(const Byte* b, const Put& put) {
    put_nibbles(b + 2, load(iq4_values.data()) * half_at(b), 0, put);
  }
};

// 8 groups of 32 elements. x = value[q] (scale s), with s of 6 bits.
struct Iq4Xs {
  static constexpr int size = 256, bytes = 136;
  template <class Put>
  static REDCO_INLINE void decode(const Byte* b, const Put& put) {
    const float scale = half_at(b);
    const auto upper = read<uint16_t>(b + 2);
#pragma GCC unroll 8
    for (int group = 0; group < 8; ++group) {
      const int lower = b[4 + group / 2] >> group % 2 * 4 & 15;
      const float s = scale * float((lower | (upper >> group * 2 & 3) << 4) - 32);
      put_nibbles(b + 8 + group * 16, load(iq4_values.data()) * s, group * 32, put);
    }
  }
};

// x = value[q] 2^(exponent - 128)
struct Mxfp4 {
  static constexpr int size = 32, bytes = 17;
  template <class Put>
  static REDCO_INLINE void decode(const Byte* b, const Put& put) {
    const uint32_t exponent = b[0];
    const uint32_t bits = exponent < 2 ? 0x200000u << exponent : (exponent - 1) << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof(scale));
    put_nibbles(b + 1, load(mxfp4_values.data()) * scale, 0, put);
  }
};

// Decodes bytes of two neighbouring elements each. The first of the two begins at bit `first`.
template <int first, class Put>
REDCO_INLINE void put_pairs(const Byte* bytes, int n, const Floats& table, const Put& put) {
  constexpr int a = first, b = 4 - first;
  static constexpr int32_t shifts[] = {a, b, a, b, a, b, a, b, a, b, a, b, a, b, a, b};
  for (int i = 0; i < n; i += n_lanes)
    put(i, look_up(table, bytes_of_pairs(bytes + i / 2) >> load(shifts)));
}

// The first of two neighbours is in the high nibble. x = value[q] scale
template <const Code& values>
struct Code4 {
  static constexpr int size = group_size, bytes = 36;
  template <class Put>
  static REDCO_INLINE void decode(const Byte* b, const Put& put) {
    put_pairs<4>(b + 4, size, load(values.data()) * read<float>(b), put);
  }
};

// x = q scale
struct Int8 {
  static constexpr int size = group_size, bytes = 68;
  template <class Put>
  static REDCO_INLINE void decode(const Byte* b, const Put& put) {
    const auto scale = read<float>(b);
    for (int i = 0; i < size; i += n_lanes) put(i, to_floats(signed_bytes(b + 4 + i)) * scale);
  }
};

// The first of two neighbours is in the low nibble. x = (q - zero) scale
struct Int4 {
  static constexpr int size = group_size, bytes = 37;
  template <class Put>
  static REDCO_INLINE void decode(const Byte* b, const Put& put) {
    put_pairs<0>(b + 5, size, (steps() - float(b[4])) * read<float>(b), put);
  }
};

// x = value[q] scale
struct Fp8 {
  static constexpr int size = group_size, bytes = 68;
  template <class Put>
  static REDCO_INLINE void decode(const Byte* b, const Put& put) {
    const auto scale = read<float>(b);
    for (int i = 0; i < size; i += n_lanes) {
      put(i, gather(e4m3_values, unsigned_bytes(b + 4 + i)) * scale);
    }
  }
};

using Nf4 = Code4<nf4_values>;
using Fp4 = Code4<fp4_values>;
