#include "flop_counter.h"

#include <redco/detail/recomputing.h>
#include <redco/sharding.h>

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace redco {

namespace {

using Inputs = c10::ArrayRef<const c10::IValue>;

at::IntArrayRef sizes(const Inputs& inputs, size_t index) {
  return inputs[index].toTensor().sizes();
}

double product(at::IntArrayRef sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), 1.0, std::multiplies<>());
}

// [..., m, k] x [..., k, n]: the arguments `first` and the one after it.
template <size_t first>
double matrix_product(const Inputs& inputs) {
  return 2 * product(sizes(inputs, first)) * double(sizes(inputs, first + 1).back());
}

// Each element of the weight [out, in, ...] is multiplied once per position of an output channel;
// if transposed, of an input channel. `places` is the number of positions in one channel, over the
// whole batch.
double convolution_of(at::IntArrayRef weight, at::IntArrayRef channels_and_places) {
  double places = product(channels_and_places) / double(channels_and_places[1]);
  return 2 * product(weight) * places;
}

at::IntArrayRef ints(const Inputs& inputs, size_t index, std::vector<int64_t>& storage) {
  storage = inputs[index].toIntVector();
  return storage;
}

// convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
double convolution(const Inputs& inputs) {
  at::IntArrayRef input = sizes(inputs, 0), weight = sizes(inputs, 1);
  if (inputs[6].toBool()) return convolution_of(weight, input);
  std::vector<int64_t> storage[3];
  at::IntArrayRef stride = ints(inputs, 3, storage[0]), padding = ints(inputs, 4, storage[1]),
                  dilation = ints(inputs, 5, storage[2]);
  auto at_or_last = [](at::IntArrayRef values, size_t i) {
    return values[std::min(i, values.size() - 1)];
  };
  std::vector<int64_t> output{input[0], weight[0]};
  for (size_t i = 0; i + 2 < input.size(); ++i) {
    int64_t reach = at_or_last(dilation, i) * (weight[i + 2] - 1) + 1;
    output.push_back((input[i + 2] + 2 * at_or_last(padding, i) - reach) / at_or_last(stride, i) +
                     1);
  }
  return convolution_of(weight, output);
}

// convolution_backward(grad_output, input, weight, bias_sizes, stride, padding, dilation,
// transposed, output_padding, groups, output_mask)
double convolution_backward(const Inputs& inputs) {
  bool is_transposed = inputs[7].toBool();
  double once = convolution_of(sizes(inputs, 2), sizes(inputs, is_transposed ? 1 : 0));
  auto mask = inputs[10].toBoolList();
  return once * (int(mask[0]) + int(mask[1]));  // of the input, of the weight
}

// Query [batch, heads, m, d], key [batch, heads, n, d], value [batch, heads, n, dv]: the arguments
// from `first` on; two matrix products.
template <size_t first, int times>
double attention(const Inputs& inputs) {
  at::IntArrayRef query = sizes(inputs, first), key = sizes(inputs, first + 1),
                  value = sizes(inputs, first + 2);
  double pairs = product(query) / double(query.back()) * double(key[key.size() - 2]);
  return times * 2 * pairs * double(query.back() + value.back());
}

using Formula = double (*)(const Inputs&);

// The backward of every product is two products.
const std::unordered_map<std::string_view, Formula> formulas = {
    {"aten::mm", matrix_product<0>},
    {"aten::addmm", matrix_product<1>},
    {"aten::addmm_", matrix_product<1>},
    {"aten::bmm", matrix_product<0>},
    {"aten::baddbmm", matrix_product<1>},
    {"aten::baddbmm_", matrix_product<1>},
    {"aten::convolution", convolution},
    {"aten::convolution_backward", convolution_backward},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", attention<0, 1>},
    {"aten::_scaled_dot_product_flash_attention", attention<0, 1>},
    {"aten::_scaled_dot_product_efficient_attention", attention<0, 1>},
    {"aten::_scaled_dot_product_cudnn_attention", attention<0, 1>},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", attention<1, 2>},
    {"aten::_scaled_dot_product_flash_attention_backward", attention<1, 2>},
    {"aten::_scaled_dot_product_efficient_attention_backward", attention<1, 2>},
    {"aten::_scaled_dot_product_cudnn_attention_backward", attention<1, 2>},
};

// Operators on the local parts of a sharded tensor are separate calls, and so are those on tensors
// that functorch wraps.
bool is_wrapper(const at::Tensor& tensor) {
  return is_sharded(tensor) ||
         tensor.key_set().has_any(c10::DispatchKeySet(
             {c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper}));
}

thread_local FlopCounter* current = nullptr;
thread_local bool is_recomputing = false;

}  // namespace

std::unique_ptr<at::ObserverContext> FlopCounter::on_call(const at::RecordFunction& call) {
  auto formula = formulas.find(call.name());
  if (formula == formulas.end() || is_recomputing) return nullptr;
  for (const c10::IValue& input : call.inputs())
    if (input.isTensor() && is_wrapper(input.toTensor())) return nullptr;
  current->count_ += formula->second(call.inputs());
  return nullptr;
}

FlopCounter::FlopCounter(double& count)
    : total_(count),
      n_exceptions_(std::uncaught_exceptions()),
      outer_(std::exchange(current, this)) {
  if (outer_ == nullptr)
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(on_call).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

FlopCounter::~FlopCounter() {
  current = outer_;
  if (outer_ == nullptr)
    at::removeCallback(handle_);
  else
    outer_->count_ += count_;
  if (std::uncaught_exceptions() == n_exceptions_) total_ += count_;
}

Recomputing::Recomputing() : outer_(std::exchange(is_recomputing, true)) {}
Recomputing::~Recomputing() { is_recomputing = outer_; }

}  // namespace redco
