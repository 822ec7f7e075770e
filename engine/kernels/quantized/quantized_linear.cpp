// Products with quantized weights: some outputs at a time are dequantized.

#include "../few_rows.h"
#include "../training_kernels.h"
#include "kernels.h"
#include "on_gpu.h"
#include "products.h"

#include <redco/autocast.h>
#include <redco/detail/operator_interceptor.h>
#include <redco/error.h>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace redco {

using namespace kernels;
using namespace quantized;

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Library products are faster for more rows.
constexpr int64_t most_rows = 16;
// Elements that are dequantized at a time: they stay in a cache of the second level.
constexpr int64_t few_rows_elements = 1 << 14;
// Elements that are dequantized for a library product, which packs its argument: enough of them
// that packing takes no longer than for a whole weight. A GPU gets enough to do.
constexpr int64_t tile_elements = 1 << 22, tile_elements_of_gpu = 1 << 26;

const BlockType& known_type(const std::string& type) {
  kernels_of(type);  // throws
  return *find_block_type(type);
}

}  // namespace

const BlockType& quantized::checked_type(const char* function, const at::Tensor& blocks,
                                         const std::string& name) {
  const BlockType& type = known_type(name);
  require(blocks.scalar_type() == at::kByte && blocks.dim() >= 2 && blocks.size(-1) == type.bytes,
          function, ": expected ", name, " in blocks [..., n, ", type.bytes, "] of uint8, got ",
          blocks.scalar_type(), " ", blocks.sizes());
  return type;
}

namespace {

const std::byte* bytes_of(const at::Tensor& blocks) {
  return reinterpret_cast<const std::byte*>(blocks.const_data_ptr<uint8_t>());
}

void require_kernels(const at::Tensor& blocks) {
  require(blocks.is_cpu() || blocks.is_cuda(),
          "quantized weights are computed with on CPUs and NVIDIA's GPUs, these are on ",
          blocks.device(), ": dequantize them before you move them");
}

template <class T>
void decode_as(const BlockType& type, const std::byte* blocks, T* to, int64_t n) {
  const auto decode = kernels_of(type.name).decode;
  std::vector<float> values(size_t(type.size));
  for (int64_t i = 0; i < n; ++i, blocks += type.bytes, to += type.size) {
    decode(blocks, values.data(), 1);
    std::copy(values.begin(), values.end(), to);
  }
}

template <>
void decode_as(const BlockType& type, const std::byte* blocks, float* to, int64_t n) {
  kernels_of(type.name).decode(blocks, to, n);
}

// The operators below work on local tensors.

// blocks [..., n, bytes] -> [..., n, size]
at::Tensor dequantize_blocks(const at::Tensor& blocks, c10::string_view type_name,
                             at::ScalarType dtype) {
  if (blocks.is_cuda() && dtype == at::kDouble)  // which has no kernel there
    return dequantize_blocks(blocks, type_name, at::kFloat).to(dtype);
  const std::string name(type_name);
  const BlockType& type = known_type(name);
  std::vector<int64_t> sizes = blocks.sizes().vec();
  sizes.back() = type.size;
  at::Tensor result = at::empty(sizes, blocks.options().dtype(dtype));
  if (result.is_meta() || result.numel() == 0) return result;
  require_kernels(blocks);
  const at::Tensor packed = blocks.contiguous();
  if (blocks.is_cuda()) {
    decode_on_gpu(packed, type, result);
    return result;
  }
  const std::byte* from = bytes_of(packed);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "dequantize", [&] {
    auto* to = result.mutable_data_ptr<scalar_t>();
    const int64_t n = result.numel() / type.size, grain = std::max<int64_t>(1, 32768 / type.size);
    at::parallel_for(0, n, grain, [&](int64_t begin, int64_t end) {
      decode_as(type, from + begin * type.bytes, to + begin * type.size, end - begin);
    });
  });
  return result;
}

// x [..., n size], importance [n size] -> [..., n, bytes]
at::Tensor quantize_rows(const at::Tensor& x, c10::string_view type_name,
                         const std::optional<at::Tensor>& importance) {
  if (x.is_cuda()) {
    std::optional<at::Tensor> on_cpu;
    if (importance) on_cpu = importance->cpu();
    return quantize_rows(x.cpu(), type_name, on_cpu).to(x.device());
  }
  const std::string name(type_name);
  const BlockType& type = known_type(name);
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() /= type.size;
  sizes.push_back(type.bytes);
  at::Tensor blocks = at::empty(sizes, x.options().dtype(at::kByte));
  if (blocks.is_meta() || blocks.numel() == 0) return blocks;
  require(x.is_cpu(), "quantize: expected a tensor on a CPU or a GPU, got one on ", x.device());
  const Encode encode = encoder_of(name);
  const at::Tensor values = x.to(at::kFloat).contiguous();
  const auto* from = values.const_data_ptr<float>();
  auto* to = reinterpret_cast<std::byte*>(blocks.mutable_data_ptr<uint8_t>());
  const int64_t n_blocks = values.numel() / type.size;
  if (!importance) {
    at::parallel_for(
        0, n_blocks, std::max<int64_t>(1, 32768 / type.size), [&](int64_t begin, int64_t end) {
          encode(from + begin * type.size, nullptr, to + begin * type.bytes, end - begin);
        });
    return blocks;
  }
  const at::Tensor weights = importance->to(at::kFloat).contiguous();
  const auto* of_column = weights.const_data_ptr<float>();
  const int64_t n_in_row = values.size(-1) / type.size;
  at::parallel_for(0, n_blocks, std::max<int64_t>(1, 32768 / type.size),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; ++i)
                       encode(from + i * type.size, of_column + i % n_in_row * type.size,
                              to + i * type.bytes, 1);
                   });
  return blocks;
}

// x [rows, n size] of float32, at most `most_rows`; blocks [out, n, bytes].
at::Tensor product_of_few_rows(const at::Tensor& x, const at::Tensor& blocks,
                               const BlockType& type) {
  if (x.is_cuda()) return multiply_on_gpu(x, blocks.contiguous(), type);
  const int64_t n_out = blocks.size(0), n_blocks = blocks.size(1), n_in = x.size(1);
  const int64_t rows = few_rows_padded(x.size(0));
  at::Tensor from = x.contiguous(), y = at::empty({rows, n_out}, x.options());
  if (rows > x.size(0)) {
    from = at::zeros({rows, n_in}, x.options());
    from.narrow(0, 0, x.size(0)).copy_(x);
  }
  const at::Tensor packed = blocks.contiguous();
  const std::byte* bytes = bytes_of(packed);
  const auto* x_data = from.const_data_ptr<float>();
  auto* y_data = y.mutable_data_ptr<float>();
  const Kernels& kernels = kernels_of(type.name);
  const int64_t n_at_once = std::clamp<int64_t>(few_rows_elements / n_in, 1, 64);
  at::parallel_for(
      0, n_out, std::max<int64_t>(16, (1 << 16) / n_in), [&](int64_t begin, int64_t end) {
        const auto at_output = [&](int64_t out) { return bytes + out * n_blocks * type.bytes; };
        if (rows == 1) {
          kernels.multiply(at_output(begin), x_data, y_data + begin, n_blocks, end - begin);
          return;
        }
        std::vector<float> weights(size_t(n_at_once * n_in));
        for (int64_t out = begin; out < end; out += n_at_once) {
          const int64_t n = std::min(n_at_once, end - out);
          kernels.decode(at_output(out), weights.data(), n * n_blocks);
          few_rows_linear(x_data, weights.data(), y_data + out, rows, n_in, n_out, true, 0, n);
        }
      });
  return rows > x.size(0) ? y.narrow(0, 0, x.size(0)) : y;
}

// The rows of a weight [out, n, bytes] that are dequantized together.
template <class Function>
void for_each_tile(const at::Tensor& blocks, const BlockType& type, at::ScalarType dtype,
                   const Function& function) {
  const int64_t n_in = blocks.size(1) * type.size;
  const int64_t n_at_once =
      std::max<int64_t>(64, (blocks.is_cuda() ? tile_elements_of_gpu : tile_elements) / n_in);
  for (int64_t out = 0; out < blocks.size(0); out += n_at_once) {
    const int64_t n = std::min(n_at_once, blocks.size(0) - out);
    function(out, n, dequantize_blocks(blocks.narrow(0, out, n), type.name, dtype).view({n, n_in}));
  }
}

}  // namespace

bool quantized::may_be_few_rows(const at::Tensor& x) {
  const bool is_recorded = at::GradMode::is_enabled() && x.requires_grad();
  return !is_recorded && !TrainingKernels::are_forced() && x.scalar_type() != at::kDouble;
}

at::Tensor quantized::multiplied(const at::Tensor& x, const at::Tensor& blocks,
                                 c10::string_view type_name, bool is_few_rows) {
  const int64_t n_rows = x.size(0), n_out = blocks.size(0);
  if (x.is_meta() || x.numel() == 0 || n_out == 0) return at::zeros({n_rows, n_out}, x.options());
  require_kernels(blocks);
  const BlockType& type = known_type(std::string(type_name));
  const at::Tensor rows = x.reshape({n_rows, -1});
  if (is_few_rows && n_rows <= most_rows)
    return product_of_few_rows(rows.to(at::kFloat), blocks, type).to(x.scalar_type());
  at::Tensor y;
  for_each_tile(blocks, type, x.scalar_type(), [&](int64_t out, int64_t n, const at::Tensor& tile) {
    at::Tensor part = at::mm(rows, tile.t());
    if (n == n_out) {
      y = std::move(part);
      return;
    }
    if (!y.defined()) y = at::empty({n_rows, n_out}, x.options());
    y.narrow(1, out, n).copy_(part);
  });
  return y;
}

at::Tensor quantized::multiplied_transposed(const at::Tensor& grad, const at::Tensor& blocks,
                                            c10::string_view type_name) {
  const BlockType& type = known_type(std::string(type_name));
  const int64_t rows = grad.size(0), n_blocks = blocks.size(1);
  const bool is_narrow = c10::elementSize(grad.scalar_type()) < 4;
  at::Tensor sum = at::zeros({rows, n_blocks * type.size},
                             is_narrow ? grad.options().dtype(at::kFloat) : grad.options());
  if (!sum.is_meta() && sum.numel() > 0 && blocks.size(0) > 0) {
    require_kernels(blocks);
    for_each_tile(blocks, type, grad.scalar_type(),
                  [&](int64_t out, int64_t n, const at::Tensor& tile) {
                    sum.add_(at::mm(grad.narrow(1, out, n), tile));
                  });
  }
  return sum.to(grad.scalar_type()).view({rows, n_blocks, type.size});
}

namespace {

TORCH_LIBRARY_FRAGMENT(redco, m) {
  using torch::dispatch;
  constexpr auto all = c10::DispatchKey::CompositeExplicitAutograd;
  m.def("quantize(Tensor x, str type, Tensor? importance=None) -> Tensor",
        dispatch(all, &quantize_rows));
  m.def("dequantize(Tensor blocks, str type, ScalarType dtype) -> Tensor",
        dispatch(all, &dequantize_blocks));
  m.def("quantized_linear(Tensor x, Tensor blocks, str type, bool is_few_rows) -> Tensor",
        dispatch(all, &multiplied));
  m.def("quantized_linear_transposed(Tensor grad, Tensor blocks, str type) -> Tensor",
        dispatch(all, &multiplied_transposed));
}

at::Tensor transposed(const at::Tensor& grad, const at::Tensor& blocks, const std::string& type);

at::Tensor call_product(const at::Tensor& x, const at::Tensor& blocks, const std::string& type,
                        bool is_few_rows) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("redco::quantized_linear", "")
                             .typed<decltype(multiplied)>();
  return op.call(x, blocks, type, is_few_rows);
}

class QuantizedProduct : public torch::autograd::Function<QuantizedProduct> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& blocks,
                            const std::string& type, bool is_few_rows) {
    ctx->save_for_backward({blocks});
    ctx->saved_data["type"] = type;
    return call_product(x, blocks, type, is_few_rows);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {
        transposed(grads[0], ctx->get_saved_variables()[0], ctx->saved_data["type"].toStringRef()),
        {},
        {},
        {}};
  }
};

class Transposed : public torch::autograd::Function<Transposed> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& grad, const at::Tensor& blocks,
                            const std::string& type) {
    ctx->save_for_backward({blocks});
    ctx->saved_data["type"] = type;
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("redco::quantized_linear_transposed", "")
                               .typed<decltype(multiplied_transposed)>();
    return op.call(grad, blocks, type);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {QuantizedProduct::apply(grads[0], ctx->get_saved_variables()[0],
                                    ctx->saved_data["type"].toStringRef(), false),
            {},
            {}};
  }
};

at::Tensor transposed(const at::Tensor& grad, const at::Tensor& blocks, const std::string& type) {
  return Transposed::apply(grad, blocks, type);
}

}  // namespace

at::Tensor quantize(const at::Tensor& tensor, const std::string& name,
                    const std::optional<at::Tensor>& importance) {
  const BlockType& type = known_type(name);
  require(tensor.is_floating_point() && tensor.dim() > 0 && tensor.size(-1) % type.size == 0,
          "quantize: ", name, " has blocks of ", type.size,
          " elements: expected floats whose last dimension is a multiple of that, got ",
          tensor.scalar_type(), " ", tensor.sizes());
  at::NoGradGuard no_grad;
  constexpr float largest = 65504;
  if (tensor.numel() > 0 && !tensor.is_meta())
    require(tensor.abs().max().item<float>() <= largest, "quantize: an element is not finite, or ",
            "its magnitude is above ", largest);
  if (importance)
    require(importance->sizes() == at::IntArrayRef{tensor.size(-1)} &&
                (importance->is_meta() ||
                 (importance->ge(0) & importance->isfinite()).all().item<bool>()),
            "quantize: importance: expected ", tensor.size(-1),
            " finite numbers that are not negative, one for each input, got ",
            importance->scalar_type(), " ", importance->sizes());
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("redco::quantize", "")
                             .typed<decltype(quantize_rows)>();
  return op.call(tensor, name, importance);
}

at::Tensor dequantize(const at::Tensor& blocks, const std::string& type, at::ScalarType dtype) {
  checked_type("dequantize", blocks, type);
  require(c10::isFloatingType(dtype), "dequantize: expected a floating-point dtype, got ", dtype);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("redco::dequantize", "")
                             .typed<decltype(dequantize_blocks)>();
  return op.call(blocks, type, dtype).flatten(-2);
}

at::Tensor quantized_linear(const at::Tensor& x, const at::Tensor& blocks, const std::string& name,
                            const std::optional<at::Tensor>& bias) {
  const BlockType& type = checked_type("quantized_linear", blocks, name);
  const int64_t n_in = blocks.dim() == 3 ? blocks.size(1) * type.size : -1;
  require(x.is_floating_point() && x.dim() > 0 && x.size(-1) == n_in,
          "quantized_linear: expected x [..., ", n_in, "] for a weight of ", name, " ",
          blocks.sizes(), ", got ", x.scalar_type(), " ", x.sizes());
  if (auto dtype = autocast_dtype(x.device().type());
      dtype && x.scalar_type() != at::kDouble && x.scalar_type() != *dtype) {
    std::optional<at::Tensor> own_bias;
    if (bias && bias->defined()) own_bias = bias->to(*dtype);
    return quantized_linear(x.to(*dtype), blocks, name, own_bias);
  }
  at::Tensor y;
  if (at::functorch::maybeCurrentDynamicLayer()) {
    y = at::linear(x, dequantize(blocks, name, x.scalar_type()));
  } else {
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = blocks.size(0);
    const auto tensors = intercepted({x.reshape({-1, blocks.size(1), type.size}), blocks});
    y = QuantizedProduct::apply(tensors[0], tensors[1], name, may_be_few_rows(x)).view(sizes);
  }
  return bias && bias->defined() ? y + *bias : y;
}

}  // namespace redco
