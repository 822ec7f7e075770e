// Resamples sound with a filter that is computed once for each phase of the ratio.

#include <redco/audio.h>

#include <redco/error.h>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <vector>

namespace redco {

namespace {

constexpr int64_t max_rate = 768000;
constexpr double zero_crossings = 6, rolloff = 0.99;

// A sinc in a Hann window. `x` counts zero crossings.
double windowed_sinc(double x) {
  if (std::abs(x) >= zero_crossings) return 0;
  double window = std::cos(x * std::numbers::pi / zero_crossings / 2), angle = x * std::numbers::pi;
  return (angle == 0 ? 1 : std::sin(angle) / angle) * window * window;
}

// Sample i of the result is at i * from / to in the input. With i = n * to + phase that is n * from
// + first[phase] plus a fraction, so that the weights depend on the phase alone.
struct Resampler {
  int64_t from, to, count;
  std::vector<int64_t> first;  // [to]: of the samples that a phase reads
  std::vector<float> weights;  // [to, count]

  Resampler(int64_t from, int64_t to) : from(from), to(to) {
    double cutoff = double(std::min(from, to)) / double(from) * rolloff;  // crossings in a sample
    auto reach = int64_t(std::ceil(zero_crossings / cutoff));
    count = 2 * reach + 1;
    first.reserve(to);
    weights.reserve(to * count);
    for (int64_t phase = 0; phase < to; ++phase) {
      double place = double(phase) * double(from) / double(to);
      first.push_back(phase * from / to - reach);
      for (int64_t i = 0; i < count; ++i)
        weights.push_back(
            float(windowed_sinc((double(first.back() + i) - place) * cutoff) * cutoff));
    }
  }

  float at(const float* input, int64_t length, int64_t i) const {
    int64_t phase = i % to, begin = i / to * from + first[phase];
    const float* weight = weights.data() + phase * count;
    double sum = 0;
    for (int64_t k = std::max<int64_t>(0, -begin); k < std::min(count, length - begin); ++k)
      sum += double(input[begin + k]) * double(weight[k]);
    return float(sum);
  }
};

}  // namespace

at::Tensor resample_audio(const at::Tensor& samples, int64_t from, int64_t to) {
  for (int64_t rate : {from, to})
    require(rate >= 1 && rate <= max_rate, "resample: a sampling rate of ", rate,
            " Hz, expected 1 to ", max_rate);
  require(samples.dim() >= 1 && samples.is_floating_point() && samples.device().is_cpu(),
          "resample: expected floating-point samples [..., samples] on the CPU, got ",
          samples.toString(), " ", samples.sizes());
  at::Tensor input = samples.detach().to(at::kFloat).contiguous();
  if (from == to)
    return input.is_same(samples) || input.is_alias_of(samples) ? input.clone() : input;
  int64_t common = std::gcd(from, to), length = input.size(-1);
  from /= common;
  to /= common;
  require(length <= (int64_t(1) << 40) / to, "resample: ", length, " samples are too many");
  std::vector<int64_t> sizes = input.sizes().vec();
  int64_t new_length = (length * to + from - 1) / from;
  sizes.back() = new_length;
  at::Tensor output = at::empty(sizes, at::kFloat);
  if (output.numel() == 0) return output;
  Resampler filter(from, to);
  const float* source = input.const_data_ptr<float>();
  auto* target = output.mutable_data_ptr<float>();
  at::parallel_for(0, output.numel(), 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      target[i] = filter.at(source + i / new_length * length, length, i % new_length);
  });
  return output;
}

}  // namespace redco
