// Rotary positions as one operator, which reads and writes each element once.

#include "cuda_kernels.h"
#include "vectorize.h"

#include <redco/detail/operator_interceptor.h>
#include <redco/error.h>
#include <redco/nn.h>

#include <ATen/OpMathType.h>
#include <ATen/TensorIterator.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace redco::kernels {

extern const char* const rotary_source;  // rotary.cu

namespace {

constexpr int64_t most_heads_dims = 4;  // with the dimension of elements

// Mirrors `TurnedHeads` of rotary.cu.
struct TurnedHeads {
  int64_t x_batch, x_head, x_position;
  int64_t y_batch, y_head, y_position;
  int64_t angle_batch, angle_head, angle_position;
  uint32_t n_heads, n_positions;
  uint32_t n_angles, n_rest;
  float sign;
};

// Adds leading dimensions, up to four dimensions.
at::Tensor as_heads(at::Tensor tensor) {
  while (tensor.dim() < most_heads_dims) tensor = tensor.unsqueeze(0);
  return tensor;
}

// Whether all rows begin at a pack.
bool begins_at_packs(const at::Tensor& heads) {
  const int64_t size = heads.element_size();
  for (int64_t dim = 0; dim + 1 < heads.dim(); ++dim)
    if (heads.size(dim) > 1 && heads.stride(dim) * size % pack_bytes != 0) return false;
  return begins_at_pack(heads);
}

// Rotates the pairs of x into y with one GPU kernel; the last dimensions are dense. `sign` is the
// sign of sin. Returns false and does nothing if there is no kernel: for other types, for more than
// four dimensions, for parts of rows that do not fill units of 16 bytes, and without NVRTC.
bool rotary_on_gpu(const at::Tensor& y, const at::Tensor& x, const at::Tensor& cos,
                   const at::Tensor& sin, bool are_neighbours, float sign) {
  if (!has_kernels_for(x) || x.dim() > most_heads_dims) return false;
  const at::Tensor from = as_heads(x), to = as_heads(y), c = as_heads(cos), s = as_heads(sin);
  const int64_t per_pack = pack_bytes / x.element_size();
  const int64_t n_angles = cos.size(-1), n_rest = x.size(-1) - 2 * n_angles;
  if (n_angles % per_pack != 0 || n_rest % per_pack != 0 || !begins_at_packs(from) ||
      !begins_at_packs(to) || !begins_at_packs(c) || !begins_at_packs(s))
    return false;
  const int64_t n_blocks = from.size(0) * from.size(2);
  const int64_t n_items = from.size(1) * (n_angles + n_rest) / per_pack;
  if (std::max(n_blocks, n_items) > std::numeric_limits<int32_t>::max()) return false;

  auto stride = [&](const at::Tensor& heads, int64_t dim) {
    return heads.size(dim) > 1 ? heads.stride(dim) / per_pack : 0;
  };
  TurnedHeads heads{stride(from, 0),
                    stride(from, 1),
                    stride(from, 2),
                    stride(to, 0),
                    stride(to, 1),
                    stride(to, 2),
                    stride(c, 0),
                    stride(c, 1),
                    stride(c, 2),
                    uint32_t(from.size(1)),
                    uint32_t(from.size(2)),
                    uint32_t(n_angles / per_pack),
                    uint32_t(n_rest / per_pack),
                    sign};
  const void *of_x = x.const_data_ptr(), *of_cos = c.const_data_ptr(), *of_sin = s.const_data_ptr();
  void* of_y = y.mutable_data_ptr();
  void* arguments[] = {&of_x, &of_cos, &of_sin, &of_y, &heads};
  static CudaKernels kernels(rotary_source);
  const std::string name = are_neighbours ? "rotary_neighbours_" : "rotary_halves_";
  kernels.launch((name + kernel_suffix(x.scalar_type())).c_str(), x.device(),
                 {.x = n_blocks, .n_threads = threads_for(n_items)}, arguments);
  return true;
}

}  // namespace

}  // namespace redco::kernels

namespace redco {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Rotates with LibTorch's operators.
at::Tensor rotary_of_parts(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                           bool are_neighbours) {
  const int64_t n = cos.size(-1), n_turned = 2 * n, dim = are_neighbours ? -1 : -2;
  const std::vector<at::Tensor> pair =
      x.narrow(-1, 0, n_turned)
          .unflatten(-1, are_neighbours ? at::IntArrayRef{n, 2} : at::IntArrayRef{2, n})
          .unbind(dim);
  at::Tensor turned =
      at::stack({pair[0] * cos - pair[1] * sin, pair[1] * cos + pair[0] * sin}, dim).flatten(-2);
  if (n_turned == x.size(-1)) return turned;
  const at::Tensor rest = x.narrow(-1, n_turned, x.size(-1) - n_turned);
  return at::cat({turned, rest.to(turned.scalar_type())}, -1);
}

// Rows of a dimension. `data` and `strides` (in bytes) have one entry each for y, x, cos and sin.
struct TurnedRows {
  char** data;
  const int64_t* strides;
  int64_t n_rows, size, n_pairs;
  bool are_neighbours;
  double sign;  // of sin
};

template <class T>
inline __attribute__((always_inline)) void turn_rows(const TurnedRows& rows) {
  using Wide = at::opmath_type<T>;
  const auto sign = Wide(rows.sign);
  const int64_t n = rows.n_pairs;
  for (int64_t row = 0; row < rows.n_rows; ++row) {
    auto at = [&](int i) { return rows.data[i] + row * rows.strides[i]; };
    T* __restrict__ y = reinterpret_cast<T*>(at(0));
    const T* __restrict__ x = reinterpret_cast<const T*>(at(1));
    const T* __restrict__ cos = reinterpret_cast<const T*>(at(2));
    const T* __restrict__ sin = reinterpret_cast<const T*>(at(3));
    auto turn = [&](int64_t i, int64_t first, int64_t second) {
      const Wide a = x[first], b = x[second], c = cos[i], s = sign * Wide(sin[i]);
      y[first] = T(a * c - b * s);
      y[second] = T(b * c + a * s);
    };
    if (rows.are_neighbours)
      for (int64_t i = 0; i < n; ++i) turn(i, 2 * i, 2 * i + 1);
    else
      for (int64_t i = 0; i < n; ++i) turn(i, i, n + i);
    std::copy(x + 2 * n, x + rows.size, y + 2 * n);
  }
}

REDCO_VECTORIZE
void turn_doubles(const TurnedRows& rows) { turn_rows<double>(rows); }
REDCO_VECTORIZE
void turn_floats(const TurnedRows& rows) { turn_rows<float>(rows); }
REDCO_VECTORIZE
void turn_bfloat16s(const TurnedRows& rows) { turn_rows<at::BFloat16>(rows); }

// The function for a type; null if there is none.
auto function_for(at::ScalarType type) -> void (*)(const TurnedRows&) {
  switch (type) {
    case at::kDouble:
      return turn_doubles;
    case at::kFloat:
      return turn_floats;
    case at::kBFloat16:
      return turn_bfloat16s;
    default:
      return nullptr;
  }
}

// The iterator visits the first element of each row, which stands for the whole row.
void turn_on_cpu(const at::Tensor& y, const at::Tensor& x, const at::Tensor& cos,
                 const at::Tensor& sin, bool are_neighbours, double sign) {
  const auto turn = function_for(x.scalar_type());
  const int64_t size = x.size(-1), n_pairs = cos.size(-1);
  at::TensorIterator rows = at::TensorIteratorConfig()
                                .set_check_mem_overlap(false)
                                .resize_outputs(false)
                                .add_owned_output(y.select(-1, 0))
                                .add_owned_const_input(x.select(-1, 0))
                                .add_owned_const_input(cos.select(-1, 0))
                                .add_owned_const_input(sin.select(-1, 0))
                                .build();
  rows.for_each(
      [&](char** data, const int64_t* strides, int64_t n) {
        turn({data, strides, n, size, n_pairs, are_neighbours, sign});
      },
      std::max<int64_t>(1, at::internal::GRAIN_SIZE / size));
}

// The operator for tensors that are not sharded. The result has the memory order of x.
at::Tensor local_rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                        bool are_neighbours, bool is_inverse) {
  at::Tensor y = at::empty_like(x);
  if (y.is_meta() || y.numel() == 0) return y;
  if (cos.size(-1) == 0) return y.copy_(x);
  if (x.stride(-1) != 1 || y.stride(-1) != 1)
    return y.copy_(local_rotary(x.contiguous(), cos, sin, are_neighbours, is_inverse));
  if (y.is_cpu() && y.scalar_type() == at::kHalf)  // compilers do not vectorize its conversions
    return y.copy_(local_rotary(x.to(at::kFloat), cos.to(at::kFloat), sin.to(at::kFloat),
                                are_neighbours, is_inverse));
  const at::Tensor c = cos.contiguous(), s = sin.contiguous();
  const double sign = is_inverse ? -1 : 1;
  if (y.is_cpu() && function_for(y.scalar_type()) != nullptr)
    turn_on_cpu(y, x, c, s, are_neighbours, sign);
  else if (!kernels::rotary_on_gpu(y, x, c, s, are_neighbours, float(sign)))
    y.copy_(rotary_of_parts(x, c, s * sign, are_neighbours));
  return y;
}

TORCH_LIBRARY_FRAGMENT(redco, m) {
  m.def("rotary(Tensor x, Tensor cos, Tensor sin, bool are_neighbours, bool is_inverse) -> Tensor",
        torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &local_rotary));
}

class Rotary : public torch::autograd::Function<Rotary> {
 public:
  static at::Tensor apply_or_call(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                                  bool are_neighbours, bool is_inverse) {
    if (at::GradMode::is_enabled() && x.requires_grad())
      return apply(x, cos, sin, are_neighbours, is_inverse);
    return call(x, cos, sin, are_neighbours, is_inverse);
  }

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& cos,
                            const at::Tensor& sin, bool are_neighbours, bool is_inverse) {
    ctx->save_for_backward({cos, sin});
    ctx->saved_data["are_neighbours"] = are_neighbours;
    ctx->saved_data["is_inverse"] = is_inverse;
    return call(x, cos, sin, are_neighbours, is_inverse);
  }

  // Rotates the gradient back.
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const bool are_neighbours = ctx->saved_data["are_neighbours"].toBool(),
               is_inverse = ctx->saved_data["is_inverse"].toBool();
    return {
        apply_or_call(grads[0], saved[0], saved[1], are_neighbours, !is_inverse), {}, {}, {}, {}};
  }

 private:
  static at::Tensor call(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                         bool are_neighbours, bool is_inverse) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("redco::rotary", "")
                               .typed<decltype(local_rotary)>();
    return op.call(x, cos, sin, are_neighbours, is_inverse);
  }
};

// Whether `angles` [..., n] broadcast to the pairs of x.
bool fit(const at::Tensor& x, const at::Tensor& angles) {
  if (angles.dim() == 0 || angles.dim() > x.dim()) return false;
  for (int64_t dim = 2; dim <= angles.dim(); ++dim)
    if (angles.size(-dim) != 1 && angles.size(-dim) != x.size(-dim)) return false;
  return 2 * angles.size(-1) <= x.size(-1);
}

// Adds leading dimensions of size 1 to `angles`, until it has as many dimensions as x.
at::Tensor with_dims_of(const at::Tensor& x, at::Tensor angles) {
  while (angles.dim() < x.dim()) angles = angles.unsqueeze(0);
  return angles;
}

}  // namespace

at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                  bool are_neighbours) {
  require(x.is_floating_point(), "rotary: expected x of a floating-point type, got ",
          x.scalar_type());
  require(fit(x, cos) && cos.sizes() == sin.sizes(), "rotary: x is ", x.sizes(), ", cos ",
          cos.sizes(), " and sin ", sin.sizes(),
          "; expected cos and sin of one shape, with at most half as many elements as x in the "
          "last dimension, and with 1 or as many as x in others");
  auto is_constant = [&](const at::Tensor& angles) {
    return angles.scalar_type() == x.scalar_type() && angles.device() == x.device() &&
           !angles.requires_grad();
  };
  // Transforms such as vmap know LibTorch's operators only.
  if (!is_constant(cos) || !is_constant(sin) || at::functorch::maybeCurrentDynamicLayer())
    return rotary_of_parts(x, cos, sin, are_neighbours);
  const variable_list given = intercepted({x, with_dims_of(x, cos), with_dims_of(x, sin)});
  return Rotary::apply_or_call(given[0], given[1], given[2], are_neighbours, /*is_inverse=*/false);
}

}  // namespace redco
