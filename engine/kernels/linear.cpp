// The linear layer, with kernels for few rows on the CPU.

#include <redco/autocast.h>
#include <redco/nn.h>

#include "few_rows.h"
#include "float8_linear.h"
#include "training_kernels.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

namespace redco {

using namespace kernels;

namespace {

// Library products are faster for more rows: in bfloat16 they may use products of pairs, which most
// processors with AVX-512 have.
int64_t most_rows(c10::ScalarType dtype) {
  return dtype == at::kFloat ? 16 : dtype == at::kBFloat16 ? 4 : 0;
}

// Elements of the weight per thread.
constexpr int64_t grain = 1 << 16;

bool is_dense(const at::Tensor& weight) {
  return weight.is_contiguous() || weight.t().is_contiguous();
}

// x [rows, in] in float32 and in the order and number of rows that the kernels need.
at::Tensor padded_rows(const at::Tensor& x) {
  const int64_t rows = few_rows_padded(x.size(0));
  if (rows == x.size(0)) return x.contiguous().to(at::kFloat);
  at::Tensor padded = at::zeros({rows, x.size(1)}, x.options().dtype(at::kFloat));
  padded.narrow(0, 0, x.size(0)).copy_(x);
  return padded;
}

template <class T>
void multiply(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& y) {
  const int64_t n_in = x.size(1), n_out = y.size(1);
  const bool by_outputs = weight.is_contiguous();
  const auto* x_data = x.const_data_ptr<float>();
  const auto* w_data = weight.const_data_ptr<T>();
  auto* y_data = y.mutable_data_ptr<float>();
  at::parallel_for(0, n_out, std::max<int64_t>(16, grain / n_in), [&](int64_t begin, int64_t end) {
    few_rows_linear(x_data, w_data, y_data, x.size(0), n_in, n_out, by_outputs, begin, end);
  });
}

// The operator of local tensors: x [rows, in], weight [out, in] -> [rows, out]. The sums are in
// float32.
at::Tensor linear_few_rows(const at::Tensor& x, const at::Tensor& weight) {
  if (!is_dense(weight) || weight.size(1) == 0) return at::linear(x, weight);
  const at::Tensor from = padded_rows(x);
  const at::Tensor y = at::empty({from.size(0), weight.size(0)}, from.options());
  if (weight.scalar_type() == at::kFloat)
    multiply<float>(from, weight, y);
  else
    multiply<c10::BFloat16>(from, weight, y);
  return y.narrow(0, 0, x.size(0)).to(x.scalar_type());
}

TORCH_LIBRARY_FRAGMENT(redco, m) {
  m.def("linear_few_rows(Tensor x, Tensor weight) -> Tensor",
        torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &linear_few_rows));
}

thread_local bool are_training_kernels_forced = false;

bool is_few_rows(const at::Tensor& x, const at::Tensor& weight) {
  return x.is_cpu() && !TrainingKernels::are_needed({&x, &weight}) &&
         weight.scalar_type() == x.scalar_type() && weight.dim() == 2 && x.dim() > 0 &&
         x.size(-1) == weight.size(1) && x.numel() > 0 &&
         x.numel() / x.size(-1) <= most_rows(x.scalar_type());
}

}  // namespace

TrainingKernels::TrainingKernels() : outer_(std::exchange(are_training_kernels_forced, true)) {}
TrainingKernels::~TrainingKernels() { are_training_kernels_forced = outer_; }
bool TrainingKernels::are_forced() { return are_training_kernels_forced; }

bool TrainingKernels::are_needed(std::initializer_list<const at::Tensor*> tensors) {
  if (are_training_kernels_forced || autocast_dtype(at::kCPU)) return true;
  // A tensor may need a gradient in an outer transform even if its own level does not show it.
  if (at::functorch::maybeCurrentDynamicLayer()) return true;
  return at::GradMode::is_enabled() && std::ranges::any_of(tensors, [](const at::Tensor* tensor) {
           return tensor != nullptr && tensor->requires_grad();
         });
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (multiplies_in_float8(x, weight)) {
    const at::Tensor y = float8_linear(x, weight);
    return bias.defined() ? y + bias : y;
  }
  if (!is_few_rows(x, weight)) return at::linear(x, weight, bias);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("redco::linear_few_rows", "")
                             .typed<decltype(linear_few_rows)>();
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  at::Tensor y = op.call(x.reshape({-1, x.size(-1)}), weight).view(sizes);
  return bias.defined() ? y.add_(bias) : y;
}

}  // namespace redco
