// The peak FLOP/s of a device: measured on the CPU, looked up in a table for GPUs.

#include "peak_flops.h"

#include <redco/detail/cuda.h>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace redco::train {

namespace {

double measured_peak(c10::ScalarType dtype) {
  using clock = std::chrono::steady_clock;
  using seconds = std::chrono::duration<double>;
  at::NoGradGuard no_grad;
  auto start = clock::now();
  double best = 0;
  // Increase the size only while products are fast: a dtype that the processor emulates is slow.
  for (int64_t n = 256; seconds(clock::now() - start).count() < 0.1;) {
    at::Tensor a = at::ones({n, n}, dtype), b = at::ones({n, n}, dtype);
    auto from = clock::now();
    at::mm(a, b);
    double time = seconds(clock::now() - from).count();
    best = std::max(best, 2.0 * double(n) * double(n) * double(n) / time);
    if (time < 0.01 && n < 2048) n *= 2;
  }
  return best;
}

// In TFLOP/s. The first entry that occurs as a word in the GPU's name applies.
struct Gpu {
  std::string_view name;
  double half;  // float16 and bfloat16 with float32 accumulation
  double tf32;
  double single;
};
constexpr Gpu gpus[] = {
    {"B200", 2250, 1125, 75},     {"H200", 989, 494, 67},
    {"GH200", 989, 494, 67},      {"H100 PCIe", 756, 378, 51},
    {"H100 NVL", 835, 417, 60},   {"H100", 989, 494, 67},
    {"H800", 989, 494, 67},       {"H20", 148, 74, 44},
    {"A100", 312, 156, 19.5},     {"A800", 312, 156, 19.5},
    {"A40", 149.7, 74.8, 37.4},   {"A30", 165, 82, 10.3},
    {"A10G", 70, 35, 35},         {"A10", 125, 62.5, 31.2},
    {"L40S", 362, 183, 91.6},     {"L40", 181, 90.5, 90.5},
    {"L4", 121, 60, 30.3},        {"V100", 125, 15.7, 15.7},
    {"T4", 65, 8.1, 8.1},         {"RTX 4090", 165, 82.6, 82.6},
    {"RTX 3090", 71, 35.6, 35.6}, {"RTX A6000", 154.8, 77.4, 38.7},
};

std::optional<double> listed_peak(c10::Device device, c10::ScalarType dtype) {
  std::string name = " " + cuda_device_name(device.index()) + " ";
  std::replace(name.begin(), name.end(), '-', ' ');
  for (const Gpu& gpu : gpus) {
    if (name.find(" " + std::string(gpu.name) + " ") == std::string::npos) continue;
    if (dtype == at::kHalf || dtype == at::kBFloat16) return 1e12 * gpu.half;
    if (dtype != at::kFloat) return std::nullopt;
    return 1e12 * (at::globalContext().allowTF32CuBLAS() ? gpu.tf32 : gpu.single);
  }
  return std::nullopt;
}

}  // namespace

std::optional<double> peak_flops(c10::Device device, c10::ScalarType dtype, double reached) {
  if (device.is_cuda()) return listed_peak(device, dtype);
  if (!device.is_cpu()) return std::nullopt;
  constexpr int most_measurements = 4;
  struct Peak {
    double flops = 0;
    int n_measurements = 0;
  };
  static std::mutex mutex;
  static std::map<c10::ScalarType, Peak> known;
  std::lock_guard lock(mutex);
  Peak& peak = known[dtype];
  if (peak.n_measurements == 0 ||
      (reached > peak.flops && peak.n_measurements < most_measurements)) {
    peak.flops = std::max(peak.flops, measured_peak(dtype));
    ++peak.n_measurements;
  }
  return peak.flops;
}

}  // namespace redco::train
