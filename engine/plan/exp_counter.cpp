#include "exp_counter.h"

#include <redco/detail/planned_device.h>

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace redco::plan {

namespace {

// The time of an element, in evaluations of exp: LibTorch's AVX2 kernels on tensors in the cache.
const std::unordered_map<std::string_view, double> exps_of_element = {
    {"aten::exp", 1},
    {"aten::exp_", 1},
    {"aten::_softmax", 1.3},
    {"aten::_log_softmax", 1.5},
    {"aten::_log_softmax_backward_data", 1},
    {"aten::logsumexp", 1},
    {"aten::sigmoid", 1.3},
    {"aten::sigmoid_", 1.3},
    {"aten::silu", 1.3},
    {"aten::silu_backward", 1.3},
    {"aten::softplus", 3},
    {"aten::softplus_backward", 1.3},
    {"aten::tanh", 3},
    {"aten::tanh_", 3},
    {"aten::erf", 2},
    {"aten::gelu", 3},
    {"aten::gelu_backward", 4},
};

// Pooling of images, whose kernels on CPUs are not vectorised unless channels are last: the time of
// a result and of each element of its window.
struct Pooling {
  double of_result, of_element;
};
const std::unordered_map<std::string_view, Pooling> poolings = {
    {"aten::max_pool2d_with_indices", {13.5, 2.65}},
    {"aten::avg_pool2d", {7, 0.4}},
};

// Inputs: the images [..., height, width], then kernel, stride (the kernel's if empty) and padding,
// each a number or one for each dimension.
double exps_of(const Pooling& pooling, c10::ArrayRef<const c10::IValue> inputs) {
  const at::Tensor& images = inputs[0].toTensor();
  if (images.dim() < 3 || !images.is_contiguous()) return 0;
  auto of_dim = [](const std::vector<int64_t>& numbers, size_t dim, int64_t otherwise) {
    return numbers.empty() ? otherwise : numbers[std::min(dim, numbers.size() - 1)];
  };
  auto kernels = inputs[1].toIntVector(), strides = inputs[2].toIntVector(),
       paddings = inputs[3].toIntVector();
  double n_results = double(images.numel()) / double(images.size(-1) * images.size(-2)), window = 1;
  for (size_t dim : {0, 1}) {
    int64_t size = images.size(int64_t(dim) - 2), kernel = of_dim(kernels, dim, 1);
    int64_t padded = size + 2 * of_dim(paddings, dim, 0);
    n_results *= double((padded - kernel) / of_dim(strides, dim, kernel) + 1);
    window *= double(kernel);
  }
  return n_results * (pooling.of_result + window * pooling.of_element);
}

// Convolutions on CPUs, whose kernels reorder the weight, and its gradient, in each call: the time
// of a number of the weight, which counts if images are few and small. `weight`: the place of this
// argument.
struct Convolution {
  size_t weight;
  double of_number;
};
const std::unordered_map<std::string_view, Convolution> convolutions = {
    {"aten::convolution", {1, 1.1}},
    {"aten::convolution_backward", {2, 2.8}},
};

double exps_of(const Convolution& convolution, c10::ArrayRef<const c10::IValue> inputs) {
  const at::Tensor& weight = inputs[convolution.weight].toTensor();
  if (device_type_of(weight) == c10::kCUDA) return 0;
  return convolution.of_number * double(weight.numel());
}

thread_local double* current = nullptr;

}  // namespace

std::unique_ptr<at::ObserverContext> ExpCounter::on_call(const at::RecordFunction& call) {
  if (auto pooling = poolings.find(call.name()); pooling != poolings.end()) {
    *current += exps_of(pooling->second, call.inputs());
    return nullptr;
  }
  if (auto convolution = convolutions.find(call.name()); convolution != convolutions.end()) {
    *current += exps_of(convolution->second, call.inputs());
    return nullptr;
  }
  auto found = exps_of_element.find(call.name());
  if (found == exps_of_element.end()) return nullptr;
  for (const c10::IValue& input : call.inputs()) {
    if (!input.isTensor()) continue;
    *current += found->second * double(input.toTensor().numel());
    break;
  }
  return nullptr;
}

ExpCounter::ExpCounter(double& count) : outer_(std::exchange(current, &count)) {
  if (outer_ == nullptr)
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(on_call).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

ExpCounter::~ExpCounter() {
  current = outer_;
  if (outer_ == nullptr) at::removeCallback(handle_);
}

}  // namespace redco::plan
