// The floating-point operations of convolutions.

#include "flops.h"

#include <algorithm>
#include <vector>

namespace redco::sharding {

namespace {

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

}  // namespace

double convolution_flops(const Inputs& inputs) {
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

double convolution_backward_flops(const Inputs& inputs) {
  bool is_transposed = inputs[7].toBool();
  double once = convolution_of(sizes(inputs, 2), sizes(inputs, is_transposed ? 1 : 0));
  auto mask = inputs[10].toBoolList();
  return once * (int(mask[0]) + int(mask[1]));  // of the input, of the weight
}

}  // namespace redco::sharding
