// Facts about devices and links. Rates are those of data sheets, for dense matrices, as in
// train/measures/peak_flops.cpp; "recalled" marks figures without a source at hand.

#include "device_tables.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <map>

namespace redco::plan {

namespace {

constexpr double giga = 1e9, tera = 1e12, gib = 1024.0 * 1024 * 1024;

// The share of the peak that large products reach in training, by architecture. Fitted to half of
// the published steps in tests/engine/plan_points_test.cpp, which checks the fit with the other
// half. For other devices a guess.
constexpr double volta = 0.78, ampere = 0.75, hopper = 0.55, other = 0.65;

struct Device {
  const char* name;
  const char* reported;  // a word of the driver's name
  DeviceFacts::Kind kind;
  double memory;     // GiB that a program can use
  double bandwidth;  // GB/s
  double half;       // TFLOP/s of bfloat16 and float16
  double single;     // TFLOP/s of float32
  double tf32;
  const char* link;
  const char* host_link;
  double matmul_share;
  bool has_bfloat16 = true;
  bool has_float8 = false;  // twice the rate of 16 bits, in all data sheets
};
constexpr auto gpu = DeviceFacts::gpu;

// Memory: what LibTorch reports on such devices ("total capacity of 79.11 GiB"); that of the
// H100-96G, the B200-192G and consumer GPUs is recalled.
constexpr Device devices[] = {
    // NVIDIA V100 data sheet; half is float16
    {"V100-16G", "V100", gpu, 15.8, 900, 125, 15.7, 0, "nvlink2", "pcie3", volta, false},
    {"V100-32G", "V100", gpu, 31.7, 900, 125, 15.7, 0, "nvlink2", "pcie3", volta, false},
    // NVIDIA A100 data sheet, SXM4
    {"A100-40G", "A100", gpu, 39.4, 1555, 312, 19.5, 156, "nvlink3", "pcie4", ampere},
    {"A100-80G", "A100", gpu, 79.1, 2039, 312, 19.5, 156, "nvlink3", "pcie4", ampere},
    // NVIDIA H100 data sheet, SXM5
    {"H100-80G", "H100", gpu, 79.1, 3350, 989, 67, 494, "nvlink4", "pcie5", hopper, true, true},
    // torchtitan/benchmarks/llama3_h100_202412_torchtitan.md: HBM2e, limited to 500 W. The peak is
    // that of the SXM5 part; the clock under the limit is not published.
    {"H100-96G", "H100", gpu, 94.5, 2400, 989, 67, 494, "nvlink4", "pcie5", hopper, true, true},
    {"H100-PCIE-80G", "H100 PCIe", gpu, 79.1, 2000, 756, 51, 378, "pcie5", "pcie5", hopper, true,
     true},
    // NVIDIA H200 data sheet
    {"H200-141G", "H200", gpu, 139.8, 4800, 989, 67, 494, "nvlink4", "pcie5", hopper, true, true},
    // NVIDIA DGX B200 data sheet: 1,440 GB and 64 TB/s of 8 GPUs
    {"B200-180G", "B200", gpu, 178.3, 8000, 2250, 75, 1125, "nvlink5", "pcie5", other, true, true},
    {"B200-192G", "B200", gpu, 190.0, 8000, 2250, 75, 1125, "nvlink5", "pcie5", other, true, true},
    // NVIDIA L40S data sheet
    {"L40S-48G", "L40S", gpu, 44.4, 864, 362, 91.6, 183, "pcie4", "pcie4", other, true, true},
    // NVIDIA Ada and Ampere GA102 white papers
    {"RTX-4090-24G", "RTX 4090", gpu, 23.5, 1008, 165, 82.6, 82.6, "pcie4", "pcie4", other, true,
     true},
    {"RTX-3090-24G", "RTX 3090", gpu, 23.6, 936, 71, 35.6, 35.6, "pcie4", "pcie4", ampere},
    {"A10G-24G", "A10G", gpu, 22.1, 600, 70, 35, 35, "pcie4", "pcie4", ampere},
    // recalled
    {"1080Ti-11G", "GTX 1080 Ti", gpu, 10.9, 484, 0, 11.3, 0, "pcie3", "pcie3", other, false},
    // cloud.google.com/tpu/docs/v4: 32 GiB, 1200 GB/s, 275 TFLOP/s. Float32 products run as several
    // bfloat16 ones; 1/6 is recalled.
    {"TPU-v4-32G", "TPU v4", DeviceFacts::tpu, 32, 1200, 275, 45.8, 0, "ici-v4", "pcie3", other},
};

struct Link {
  const char* name;
  double bandwidth;  // GB/s in one direction, of one device
  double share;
  double latency_us, hop_us;              // protocol Simple
  double small_latency_us, small_hop_us;  // protocol LL
};

// Latencies: NCCL 2.x, src/graph/tuning.cc, rings: base 8.4 (Simple) and 3.6 (LL); a hop 3.4 / 0.47
// (NVLink), 5.7 / 1.0 (PCIe), 9.6 / 2.7 (network).
constexpr Link links[] = {
    // Half of the data sheets' figures, which count both directions. NCCL caps an A100 at 235 GB/s
    // (tuning.cc) and gives an H100 18 channels of 20.6 GB/s: 0.78 and 0.82 of these figures.
    {"nvlink2", 150, 0.80, 8.4, 3.4, 3.6, 0.47},
    {"nvlink3", 300, 0.78, 8.4, 3.4, 3.6, 0.47},
    {"nvlink4", 450, 0.80, 8.4, 3.4, 3.6, 0.47},
    {"nvlink5", 900, 0.80, 8.4, 3.4, 3.6, 0.47},
    // 16 lanes; 80 % of 15.8, 31.5 and 63 GB/s (recalled)
    {"pcie3", 12, 1, 8.4, 5.7, 3.6, 1.0},
    {"pcie4", 25, 1, 8.4, 5.7, 3.6, 1.0},
    {"pcie5", 50, 1, 8.4, 5.7, 3.6, 1.0},
    {"ib-200", 25, 0.90, 8.4, 9.6, 3.6, 2.7},
    {"ib-400", 50, 0.90, 8.4, 9.6, 3.6, 2.7},
    {"ib-800", 100, 0.90, 8.4, 9.6, 3.6, 2.7},
    // 30 us a message and 90 % of the wire (recalled)
    {"eth-10", 1.25, 0.90, 30, 30, 0, 0},
    {"eth-25", 3.125, 0.90, 30, 30, 0, 0},
    {"eth-100", 12.5, 0.90, 30, 30, 0, 0},
    // cloud.google.com/tpu/docs/v4: six links of 50 GB/s. A ring in one dimension uses two of them.
    {"ici-v4", 100, 0.90, 1, 1, 0, 0},
    // Gloo between two processes of a host, on the machine of tests/bench/README.md: 0.9 ms for 256
    // B, 17 ms for 16 MB
    {"loopback", 1.04, 1, 400, 250, 0, 0},
};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return char(std::tolower(c)); });
  return text;
}

DeviceFacts facts(const Device& device) {
  DeviceFacts facts{.name = device.name,
                    .kind = device.kind,
                    .memory = std::llround(device.memory * gib),
                    .bandwidth = device.bandwidth * giga,
                    .host_bandwidth = find_link(device.host_link)->bandwidth,
                    .matmul_share = device.matmul_share,
                    .tf32 = device.tf32 * tera,
                    .link = device.link};
  facts.flops[c10::ScalarType::Float] = device.single * tera;
  if (device.half > 0 && device.kind == gpu)
    facts.flops[c10::ScalarType::Half] = device.half * tera;
  if (device.half > 0 && device.has_bfloat16)
    facts.flops[c10::ScalarType::BFloat16] = device.half * tera;
  if (device.has_float8) facts.flops[c10::ScalarType::Float8_e4m3fn] = 2 * device.half * tera;
  return facts;
}

}  // namespace

std::optional<DeviceFacts> find_device(const std::string& name) {
  std::string word = lower(name);
  if (word.empty()) return std::nullopt;
  for (const Device& device : devices)
    if (lower(device.name) == word) return facts(device);
  // A name without its memory: finds the device with the least memory.
  const Device* found = nullptr;
  for (const Device& device : devices) {
    std::string full = lower(device.name);
    bool matches =
        full.starts_with(word + "-") && full.find('-', word.size() + 1) == std::string::npos;
    if (matches && (found == nullptr || device.memory < found->memory)) found = &device;
  }
  return found == nullptr ? std::nullopt : std::optional(facts(*found));
}

std::optional<DeviceFacts> find_reported_device(const std::string& name, int64_t memory) {
  std::string words = " " + lower(name) + " ";
  std::replace(words.begin(), words.end(), '-', ' ');
  const Device* found = nullptr;
  auto distance = [&](const Device& device) {
    return std::abs(device.memory * gib - double(memory));
  };
  size_t longest = 0;
  for (const Device& device : devices) {
    std::string reported = lower(device.reported);
    if (words.find(" " + reported + " ") == std::string::npos || reported.size() < longest)
      continue;
    if (reported.size() == longest && distance(device) >= distance(*found)) continue;
    found = &device;
    longest = reported.size();
  }
  return found == nullptr ? std::nullopt : std::optional(facts(*found));
}

std::optional<LinkFacts> find_link(const std::string& name) {
  // "ib 400G" and "ib-400G" are "ib-400".
  std::string word = lower(name);
  std::replace(word.begin(), word.end(), ' ', '-');
  if (word.size() > 1 && word.back() == 'g' && std::isdigit((unsigned char)word[word.size() - 2]))
    word.pop_back();
  for (const Link& link : links)
    if (word == link.name)
      return LinkFacts{link.name,   link.bandwidth * giga, link.share,       link.latency_us,
                       link.hop_us, link.small_latency_us, link.small_hop_us};
  return std::nullopt;
}

std::set<std::string> device_names() {
  std::set<std::string> names;
  for (const Device& device : devices) names.insert(device.name);
  return names;
}

std::set<std::string> link_names() {
  std::set<std::string> names;
  for (const Link& link : links) names.insert(link.name);
  return names;
}

ReservedMemory default_reserve(DeviceFacts::Kind kind) {
  // For a GPU: the CUDA context with LibTorch's kernels (728 MB measured on an H100), NCCL's
  // buffers for one communicator (recalled), cuBLAS's workspace on Hopper (32 MiB; LibTorch's
  // default).
  if (kind == DeviceFacts::gpu)
    return {int64_t(0.68 * gib), int64_t(0.3 * gib), int64_t(0.03 * gib)};
  return {};
}

const ModelConstants& constants_of(DeviceFacts::Kind kind) {
  // matmul: a guess that does not matter for large models. launch_us and kernel_us: on GPUs
  // measured with an H100 in a virtual machine, else guesses. host: on GPUs measured on the same
  // machine, on CPUs taken between steps of T5 that fit a cache and steps that do not.
  // biased_attention_share: on GPUs measured with T5 on an H100. attention_share: the best fit of
  // 0.7, 1 and 1.4 to the half of the points of tests/engine/plan_points_test.cpp that the devices'
  // matmul_share was fitted to. spread: GPUs of five computing centers vary by 8 % on average
  // (arXiv 2208.11035), taken as the distance of a box plot's whiskers, which is 5.4 standard
  // deviations; unknown for other devices.
  static const Efficiency of_products{{{256, 0.4}, {1024, 0.8}, {4096, 1}}};
  static const ModelConstants of_gpu{.bandwidth_share = 0.88,
                                     .launch_us = 10,
                                     .kernel_us = 3,
                                     .host = {2, 0.5},
                                     .matmul = of_products,
                                     .attention_share = 0.7,
                                     .biased_attention_share = 0.15,
                                     .spread = 0.015};
  static const ModelConstants of_tpu{.bandwidth_share = 0.88,
                                     .launch_us = 4.5,
                                     .kernel_us = 0,
                                     .host = {0, 0},
                                     .matmul = of_products,
                                     .attention_share = 0.7,
                                     .biased_attention_share = 0.7,
                                     .spread = 0};
  static const ModelConstants of_cpu{.bandwidth_share = 0.70,
                                     .launch_us = 1.5,
                                     .kernel_us = 0,
                                     .host = {8, 2},
                                     .matmul = {{{16, 0.3}, {64, 0.7}, {256, 1}}},
                                     .attention_share = 0.5,
                                     .biased_attention_share = 0.5,
                                     .spread = 0};
  switch (kind) {
    case DeviceFacts::gpu:
      return of_gpu;
    case DeviceFacts::tpu:
      return of_tpu;
    default:
      return of_cpu;
  }
}

}  // namespace redco::plan
