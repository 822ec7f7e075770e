// silu(gate) * up and its gradients on GPUs: the kernels of silu_mul.cpp, which are compiled
// where they run. A block of threads computes one row, in float.

#include "element_types.cuh"
#include "packs.cuh"

namespace {

// Rows of gate and up, which may be halves of longer rows; other rows are dense. All numbers are in
// packs.
struct GatedRows {
  i64 n_columns, gate_stride, up_stride;
};

__device__ float sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }

template <class Type>
__device__ void multiply(const Pack<typename Type::Stored>* gate,
                         const Pack<typename Type::Stored>* up, Pack<typename Type::Stored>* y,
                         const GatedRows& rows) {
  typedef Pack<typename Type::Stored> Packed;
  const i64 row = blockIdx.x;
  for (i64 column = threadIdx.x; column < rows.n_columns; column += blockDim.x) {
    const Packed g = gate[row * rows.gate_stride + column];
    Packed result = up[row * rows.up_stride + column];
    for (int i = 0; i < Packed::n; ++i) {
      const float wide = Type::wide(g.of[i]);
      result.of[i] = Type::narrow(wide * sigmoid(wide) * Type::wide(result.of[i]));
    }
    y[row * rows.n_columns + column] = result;
  }
}

template <class Type>
__device__ void differentiate(const Pack<typename Type::Stored>* grad,
                              const Pack<typename Type::Stored>* gate,
                              const Pack<typename Type::Stored>* up,
                              Pack<typename Type::Stored>* d_gate,
                              Pack<typename Type::Stored>* d_up, const GatedRows& rows) {
  typedef Pack<typename Type::Stored> Packed;
  const i64 row = blockIdx.x;
  for (i64 column = threadIdx.x; column < rows.n_columns; column += blockDim.x) {
    const i64 dense = row * rows.n_columns + column;
    const Packed of_y = grad[dense];
    Packed g = gate[row * rows.gate_stride + column], u = up[row * rows.up_stride + column];
    for (int i = 0; i < Packed::n; ++i) {
      const float wide = Type::wide(g.of[i]), given = Type::wide(of_y.of[i]);
      const float share = sigmoid(wide), silu = wide * share;
      g.of[i] = Type::narrow(given * Type::wide(u.of[i]) * (share + silu * (1.0F - share)));
      u.of[i] = Type::narrow(given * silu);
    }
    d_gate[dense] = g;
    d_up[dense] = u;
  }
}

}  // namespace

#define KERNELS(type, Type)                                                                      \
  extern "C" __global__ void silu_mul_##type(                                                    \
      const Pack<Type::Stored>* gate, const Pack<Type::Stored>* up, Pack<Type::Stored>* y,       \
      GatedRows rows) {                                                                          \
    multiply<Type>(gate, up, y, rows);                                                           \
  }                                                                                              \
  extern "C" __global__ void silu_mul_backward_##type(                                           \
      const Pack<Type::Stored>* grad, const Pack<Type::Stored>* gate,                            \
      const Pack<Type::Stored>* up, Pack<Type::Stored>* d_gate, Pack<Type::Stored>* d_up,        \
      GatedRows rows) {                                                                          \
    differentiate<Type>(grad, gate, up, d_gate, d_up, rows);                                     \
  }
KERNELS(float, Float)
KERNELS(bfloat16, BFloat16)
KERNELS(half, Half)
#undef KERNELS
