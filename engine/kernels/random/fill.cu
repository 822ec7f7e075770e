// Random numbers on GPUs: the kernels of fill_on_device.cpp, which are compiled where they run.
// They compute what fill.cpp and floats.cpp do, with products and sums rounded separately.

#include "../element_types.cuh"
#include "words.cuh"

namespace {

constexpr int n_each = 4;  // elements of a thread

template <class T>
struct alignas(n_each * sizeof(T) < 16 ? n_each * sizeof(T) : 16) Pack {
  T of[n_each];
};

// Sets out[i] = number(in[i], bits) for all n elements. `bits` are the word of element i, or its 64
// bits. If the kernel does not read `in`, in[i] counts as 0.
template <class Bits, bool reads, class T, class Number>
__device__ void transform(T* out, const T* in, i64 n, const Words& words, const Number& number) {
  const bool is_aligned = (u64(out) | u64(in)) % alignof(Pack<T>) == 0;
  i64 i = n_each * (i64(blockIdx.x) * blockDim.x + threadIdx.x);
  const i64 end = i + n_each < n ? i + n_each : n;
  while (i < end) {
    const Run run = run_at(words, i, n);
    const i64 stop = i + run.length < end ? i + run.length : end;
    if (is_aligned && stop - i == n_each && run.place % n_each == 0) {
      Pack<T> pack = {};
      if constexpr (reads) pack = *reinterpret_cast<const Pack<T>*>(in + i);
      Block block = {};
      for (int j = 0; j < n_each; ++j) {
        if (j % n_in_block<Bits> == 0)
          block = philox(u64(run.place + j) / n_in_block<Bits>, words.key);
        pack.of[j] = number(pack.of[j], bits_at<Bits>(block, j));
      }
      *reinterpret_cast<Pack<T>*>(out + i) = pack;
      return;
    }
    u64 held = ~u64(0);
    Block block = {};
#pragma unroll 1
    for (u64 place = u64(run.place); i < stop; ++i, ++place) {
      if (place / n_in_block<Bits> != held)
        block = philox(held = place / n_in_block<Bits>, words.key);
      out[i] = number(reads ? in[i] : T(), bits_at<Bits>(block, place));
    }
  }
}

// Sets out[i] = number(bits) for all n elements. `bits` are the word of element i, or its 64 bits.
template <class Bits, class T, class Number>
__device__ void fill(T* out, i64 n, const Words& words, const Number& number) {
  transform<Bits, false>(out, static_cast<const T*>(nullptr), n, words,
                         [=](T, Bits bits) { return number(bits); });
}

// The natural logarithm of a normal positive number.
__device__ float log_of(float x) {
  constexpr int sqrt_half = 0x3F3504F3;
  int bits = __float_as_int(x) - sqrt_half;
  float exponent = float(bits >> 23);
  float f = __int_as_float((bits & 0x7FFFFF) + sqrt_half) - 1;
  float s = f / (2 + f), z = s * s, w = z * z, half = 0.5F * f * f;
  float r = z * (0.66666662693F + w * 0.28498786688F) + w * (0.40000972152F + w * 0.24279078841F);
  return s * (half + r) + exponent * 9.0580006145e-06F - half + f + exponent * 6.9313812256e-01F;
}

__device__ float normal_of(u32 word) {
  constexpr float center_of[] = {2.81022636e-08F,  3.43273939e-07F, -3.5233877e-06F,
                                 -4.39150654e-06F, 0.00021858087F,  -0.00125372503F,
                                 -0.00417768164F,  0.246640727F,    1.50140941F};
  constexpr float tail_of[] = {-0.000200214257F, 0.000100950558F, 0.00134934322F,
                               -0.00367342844F,  0.00573950773F,  -0.0076224613F,
                               0.00943887047F,   1.00167406F,     2.83297682F};
  u32 bits = word << 1 >> 8;
  float p = (float(int(bits)) + 0.5F) * 2.98023223876953125e-08F;  // 2^-25
  float x = 1 - 2 * p, w = -log_of(4 * p * (1 - p));
  bool is_central = w < 5;
  float v = is_central ? w - 2.5F : sqrtf(w) - 3;
  float sum = is_central ? center_of[0] : tail_of[0];
  for (int i = 1; i < 9; ++i) sum = (is_central ? center_of[i] : tail_of[i]) + sum * v;
  return (1 - 2 * float(int(word >> 31))) * (1.41421356237309504880F * sum * x);
}

}  // namespace

extern "C" __global__ void uniform_float(float* out, i64 n, Words words, float low, float width,
                                         int digits) {
  float step = 1;
  for (int i = 0; i < digits; ++i) step /= 2;
  fill<u32>(out, n, words,
            [=](u32 word) { return low + float(int(word >> (32 - digits))) * step * width; });
}

extern "C" __global__ void uniform_double(double* out, i64 n, Words words, double low,
                                          double width) {
  fill<u64>(out, n, words, [=](u64 bits) {
    return low + double(bits >> 11) * 1.1102230246251565404e-16 * width;  // 2^-53
  });
}

extern "C" __global__ void open_uniform(double* out, i64 n, Words words) {
  fill<u64>(out, n, words, [](u64 bits) {
    return (double(bits >> 12) + 0.5) * 2.2204460492503130808e-16;  // 2^-52
  });
}

extern "C" __global__ void normal_float(float* out, i64 n, Words words, float mean, float std) {
  fill<u32>(out, n, words, [=](u32 word) { return mean + std * normal_of(word); });
}

extern "C" __global__ void bernoulli(bool* out, i64 n, Words words, u32 last) {
  fill<u32>(out, n, words, [=](u32 word) { return word <= last; });
}

// x times `scale` where the word is at most `last`, else times 0.
template <class Type>
__device__ void dropout(typename Type::Stored* out, i64 n, const Words& words,
                        const typename Type::Stored* x, u32 last, float scale) {
  transform<u32, true>(out, x, n, words, [=](typename Type::Stored value, u32 word) {
    return Type::narrow(Type::wide(value) * (word <= last ? scale : 0.0F));
  });
}

#define DROPOUT(type, Type)                                                                 \
  extern "C" __global__ void dropout_##type(Type::Stored* out, i64 n, Words words,          \
                                            const Type::Stored* x, u32 last, float scale) { \
    dropout<Type>(out, n, words, x, last, scale);                                           \
  }
DROPOUT(float, Float)
DROPOUT(bfloat16, BFloat16)
DROPOUT(half, Half)
#undef DROPOUT

extern "C" __global__ void integers(i64* out, i64 n, Words words, i64 base, u64 range) {
  fill<u64>(out, n, words,
            [=](u64 bits) { return i64(u64(base) + (range == 0 ? bits : (bits >> 1) % range)); });
}

extern "C" __global__ void short_integers(i64* out, i64 n, Words words, i64 base, u64 range) {
  fill<u64>(out, n, words, [=](u64 bits) {
    return i64(u64(base) + (((bits >> 32) * range + (u64(u32(bits)) * range >> 32)) >> 32));
  });
}
