// The loops over blocks, and a table of them for each type. See lanes.h for where it is included.

template <class Type>
void decode_blocks(const std::byte* blocks, float* to, int64_t n) {
  const auto* from = reinterpret_cast<const Byte*>(blocks);
  for (int64_t i = 0; i < n; ++i, from += Type::bytes, to += Type::size)
    Type::decode(from, [&](int at, const Floats& values) REDCO_LAMBDA { store(values, to + at); });
}

// The sum of 16 partial sums, in the order of few_rows.cpp.
REDCO_INLINE float sum(const Floats& lanes) {
  float parts[n_lanes];
  store(lanes, parts);
  for (int n = n_lanes / 2; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) parts[i] += parts[i + n];
  return parts[0];
}

// How far ahead of the computation bytes are fetched. On one core of a Xeon, this makes products of
// weights that are in no cache 1.3 to 1.7 times as fast.
constexpr int prefetched_bytes = 4096;

// Computes two outputs at a time, so that one does not wait for the other. The last of them may be
// computed twice.
template <class Type>
void multiply(const std::byte* blocks, const float* x, float* y, int64_t n_blocks, int64_t n_out) {
  constexpr int n = 2;
  for (int64_t out = 0; out < n_out; out += n) {
    Floats sums[n] = {};
    const Byte* rows[n];
    for (int k = 0; k < n; ++k)
      rows[k] = reinterpret_cast<const Byte*>(blocks) +
                std::min(out + k, n_out - 1) * n_blocks * Type::bytes;
    for (int64_t i = 0; i < n_blocks; ++i) {
#pragma GCC unroll 2
      for (int k = 0; k < n; ++k) {
        const Byte* block = rows[k] + i * Type::bytes;
        for (int at = 0; at < Type::bytes; at += 64)
          __builtin_prefetch(block + prefetched_bytes + at);
        Type::decode(block, [&](int at, const Floats& w) REDCO_LAMBDA {
          sums[k] = add_product(sums[k], w, load(x + i * Type::size + at));
        });
      }
    }
    for (int k = 0; k < n; ++k) y[std::min(out + k, n_out - 1)] = sum(sums[k]);
  }
}

template <class Type>
constexpr Kernels loops_of() {
  return {decode_blocks<Type>, multiply<Type>};
}

// The kernels in the order of REDCO_TYPES.
#define REDCO_ROW(Type, name, ggml, plain_encoder, fitted_encoder) loops_of<Type>()
constexpr Kernels kernels[] = {REDCO_TYPES(REDCO_ROW)};
#undef REDCO_ROW
