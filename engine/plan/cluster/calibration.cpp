// Measures a device and its links.

#include <redco/calibration.h>

#include "device_tables.h"
#include "link_fit.h"
#include "this_host.h"

#include "../../train/measures/flop_counter.h"

#include <redco/detail/recomputing.h>
#include <redco/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace redco::plan {

namespace {

constexpr int64_t kib = 1024, mib = 1024 * kib;

using Work = std::function<void()>;

// The forward and backward pass of an operator at several sizes.
struct Passes {
  ProductKind kind;
  double time;                 // share of the total time that a dtype may take
  std::vector<int64_t> sizes;  // as in Measurements::products
  Work (*of_size)(int64_t size, const at::TensorOptions& options);
};

// Layers that take turns have more bytes than a cache: as in a model, no layer is still in the
// cache at its next turn. Each call keeps its results until the next call has its own, so no call
// after the second needs new memory.
constexpr size_t bytes_of_turns = 64 * mib;

// The two linear layers of a transformer's MLP. `size` is the smallest dimension: the rows on a
// CPU, the width on a GPU. A GPU gets enough rows that the time to start its kernels hardly counts.
// Values are random: products of ones are 10 % faster on some CPUs.
Work matmul_passes(int64_t size, const at::TensorOptions& options) {
  const bool is_gpu = options.device().is_cuda();
  const int64_t n_rows = is_gpu ? std::max(size, 8 * mib / size) : size;
  const int64_t width = is_gpu ? size : std::max<int64_t>(size, 1024), inner = 4 * width;
  struct Mlp {
    at::Tensor x, up, up_bias, down, down_bias;
  };
  std::vector<Mlp> mlps;
  do {
    mlps.push_back({at::randn({n_rows, width}, options), at::randn({inner, width}, options),
                    at::randn({inner}, options), at::randn({width, inner}, options),
                    at::randn({width}, options)});
  } while (2 * mlps.size() * mlps[0].up.nbytes() < bytes_of_turns);
  return [mlps = std::move(mlps), results = std::vector<at::Tensor>(), turn = size_t{0}]() mutable {
    auto& [x, up, up_bias, down, down_bias] = mlps[turn++ % mlps.size()];
    at::Tensor hidden = at::addmm(up_bias, x, up.t()), y = at::addmm(down_bias, hidden, down.t());
    at::Tensor d_down = at::mm(y.t(), hidden), d_hidden = at::mm(y, down);
    results = {hidden, y, d_down, d_hidden, at::mm(d_hidden.t(), x), at::mm(d_hidden, up)};
  };
}

// Attention with heads of 64 numbers, causal or with a trained bias. Longer rows mean fewer rows. A
// GPU gets more rows, so that the time to start its kernels hardly counts.
Work attention_passes(int64_t n_queries, const at::TensorOptions& options, bool has_bias) {
  const int64_t n_all = options.device().is_cuda() ? 128 * kib : 2 * kib;
  const int64_t n_rows = std::max<int64_t>(1, n_all / n_queries);
  auto heads = [&] { return at::randn({n_rows, 8, n_queries, 64}, options); };
  std::vector<at::Tensor> inputs{heads(), heads(), heads()};
  if (has_bias) inputs.push_back(at::zeros({1, 8, n_queries, n_queries}, options));
  for (at::Tensor& input : inputs) input.requires_grad_();
  return [inputs, has_bias, d_result = heads()] {
    at::AutoGradMode grad_mode(true);
    BackwardOnThisThread that_counts_operations;
    auto bias = has_bias ? std::optional(inputs[3]) : std::nullopt;
    at::Tensor result = at::scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], bias, 0,
                                                         /*is_causal=*/!has_bias);
    torch::autograd::grad({result}, inputs, {d_result});
  };
}

Work causal_attention_passes(int64_t n_queries, const at::TensorOptions& options) {
  return attention_passes(n_queries, options, false);
}

Work biased_attention_passes(int64_t n_queries, const at::TensorOptions& options) {
  return attention_passes(n_queries, options, true);
}

// A 3 x 3 convolution that keeps the width of its images. As in a network, fewer than 64 channels
// become 64, and images with more channels have fewer pixels.
Work convolution_passes(int64_t n_channels, const at::TensorOptions& options) {
  const int64_t n_results = std::max<int64_t>(n_channels, 64);
  const int64_t width = std::lround(256 / std::sqrt(double(n_results)));
  const int64_t n_images = options.device().is_cuda() ? 256 : 4;
  struct Layer {
    at::Tensor x, weight, d_y;
    size_t nbytes() const { return x.nbytes() + weight.nbytes() + d_y.nbytes(); }
  };
  std::vector<Layer> layers;
  do {
    at::Tensor x = at::randn({n_images, n_channels, width, width}, options);
    layers.push_back({x, at::randn({n_results, n_channels, 3, 3}, options),
                      at::randn({n_images, n_results, width, width}, options)});
  } while (layers.size() * layers[0].nbytes() < bytes_of_turns);
  return [layers = std::move(layers), results = std::vector<at::Tensor>(),
          turn = size_t{0}]() mutable {
    auto& [x, weight, d_y] = layers[turn++ % layers.size()];
    at::Tensor y = at::convolution(x, weight, {}, {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1);
    auto [d_x, d_weight, d_bias] =
        at::convolution_backward(d_y, x, weight, std::nullopt, {1, 1}, {1, 1}, {1, 1}, false,
                                 {0, 0}, 1, {true, true, false});
    results = {y, d_x, d_weight};
  };
}

const Passes all_passes[] = {
    {ProductKind::matmul, 0.12, {64, 128, 256, 512, 1024, 2048, 4096}, matmul_passes},
    {ProductKind::attention, 0.03, {128, 1024}, causal_attention_passes},
    {ProductKind::biased_attention, 0.03, {128, 1024}, biased_attention_passes},
    {ProductKind::convolution, 0.02, {4, 16, 64, 256}, convolution_passes}};

// Measures calls on all processes at the same time. Counts the slowest process, because in a step
// the others wait for it.
class Stopwatch {
 public:
  Stopwatch(Group& world, c10::Device device) : world_(world), device_(device) {}

  c10::Device device() const { return device_; }
  // Calls `work` once, and then for about `seconds`; returns the median time of these calls.
  double time_of(double seconds, const Work& work) {
    using clock = std::chrono::steady_clock;
    std::vector<double> times;
    double spent = 0;
    work();
    begin_together();
    do {
      auto from = clock::now();
      work();
      synchronize(device_);
      times.push_back(slowest(std::chrono::duration<double>(clock::now() - from).count()));
      spent += times.back();
    } while (spent < seconds);
    return median(std::move(times));
  }
  void begin_together() { slowest(0); }

 private:
  double slowest(double seconds) {
    at::Tensor all = at::full({1}, seconds, at::device(device_).dtype(at::kDouble));
    world_.all_reduce(all, ReduceOp::max);
    return all.item<double>();
  }

  Group& world_;
  c10::Device device_;
};

// Returns the operations per second for each size. Always measures the two smallest sizes, and
// larger ones until one takes too long. Measures several rounds if there is time, because the speed
// of a shared machine changes from second to second.
std::vector<std::pair<double, double>> measure_products(const Passes& passes, Stopwatch& stopwatch,
                                                        c10::ScalarType dtype, double seconds) {
  constexpr int n_rounds = 5;
  const auto options = at::device(stopwatch.device()).dtype(dtype);
  size_t n_sizes = passes.sizes.size();
  const double seconds_of_size = seconds / double(n_sizes * n_rounds);
  std::vector<Work> works;
  std::vector<double> flops(n_sizes);
  std::vector<std::vector<double>> times(n_sizes);
  double spent = 0;
  for (int round = 0; round < n_rounds && (round == 0 || spent < seconds); ++round)
    for (size_t i = 0; i < n_sizes; ++i) {
      if (round == 0) {
        works.push_back(passes.of_size(passes.sizes[i], options));
        train::FlopCounter flop_counter(flops[i]);
        works[i]();
      }
      times[i].push_back(stopwatch.time_of(seconds_of_size, works[i]));
      spent += times[i].back() + std::max(seconds_of_size, times[i].back());
      // The next size takes two to eight times as long, and is called twice.
      if (i > 0 && 16 * times[i].back() > seconds) n_sizes = i + 1;
    }
  std::vector<std::pair<double, double>> rates;
  for (size_t i = 0; i < n_sizes; ++i)
    rates.emplace_back(double(passes.sizes[i]), flops[i] / median(times[i]));
  return rates;
}

// Bytes per second of an addition to a tensor of this size.
double measure_bandwidth(Stopwatch& stopwatch, int64_t bytes, double seconds) {
  at::Tensor a = at::ones({bytes / 4}, at::device(stopwatch.device()).dtype(at::kFloat));
  at::Tensor b = at::zeros_like(a);
  double time = stopwatch.time_of(seconds, [&] { a.add_(b); });
  return 3 * double(a.nbytes()) / time;
}

// Measures which share of its peaks this device reaches. The peaks of a CPU were measured too: on a
// busy machine they may be too low, so they are raised to the rates that are reached.
void measure_device(Stopwatch& stopwatch, double seconds, int64_t n_processes, DeviceFacts& facts,
                    Measurements& measured) {
  at::NoGradGuard no_grad;
  const bool is_cpu = facts.kind == DeviceFacts::cpu;
  const double sharing = is_cpu ? double(n_processes) : 1;
  for (const Passes& passes : all_passes) {
    if (is_cpu && passes.kind == ProductKind::biased_attention) continue;  // it has no kernel
    for (auto& [dtype, peak] : facts.flops) {
      auto rates = measure_products(passes, stopwatch, dtype, passes.time * seconds);
      if (is_cpu && passes.kind == ProductKind::matmul)
        for (auto [size, rate] : rates) peak = std::max(peak, sharing * rate);
      for (auto& [size, rate] : rates) rate *= sharing / peak;
      measured.products[passes.kind][dtype].points = std::move(rates);
    }
  }
  double rate = sharing * measure_bandwidth(stopwatch, 64 * mib, 0.1 * seconds);
  if (is_cpu) facts.bandwidth = std::max(facts.bandwidth, rate);
  measured.bandwidth = rate / facts.bandwidth;
}

// Microseconds of an operator on almost nothing, in a forward and backward pass.
double measure_launch(Stopwatch& stopwatch, double seconds) {
  constexpr int n = 250, n_operators = 4 * n;  // backward has two products and a sum for each
  at::AutoGradMode grad_mode(true);
  at::Tensor a = at::ones({4}, at::device(stopwatch.device())).requires_grad_();
  double time = stopwatch.time_of(seconds, [&] {
    at::Tensor y = a;
    for (int i = 0; i < n; ++i) y = y * a;
    torch::autograd::grad({y.sum()}, {a});
  });
  return 1e6 * time / n_operators;
}

std::unique_ptr<Pending> start(Group& group, Group::Kind kind, const at::Tensor& rows) {
  switch (kind) {
    case Group::all_reduce_kind:
      return group.start_all_reduce(rows, ReduceOp::sum);
    case Group::all_gather_kind:
      return group.start_all_gather(rows[0]);
    case Group::reduce_scatter_kind:
      return group.start_reduce_scatter(rows, ReduceOp::sum);
    default:
      return group.start_all_to_all(rows);
  }
}

// Times all collectives. The calls depend on the arguments alone, so that all processes make the
// same ones.
std::vector<CollectiveSample> time_collectives(Group& group, c10::Device device, int64_t largest) {
  using clock = std::chrono::steady_clock;
  Stopwatch stopwatch(group, device);
  at::NoGradGuard no_grad;
  std::vector<CollectiveSample> samples;
  at::Tensor others = at::ones({16 * mib}, at::device(device));
  for (int64_t bytes = kib; bytes <= largest; bytes *= bytes < mib / 2 ? 8 : 2) {
    int64_t columns = std::max<int64_t>(1, bytes / (4 * group.size()));
    for (int kind = 0; kind < Group::n_kinds; ++kind) {
      at::Tensor rows = at::ones({group.size(), columns}, at::device(device));
      constexpr int n_repeats = 5;
      std::vector<double> times;
      int64_t sent = 0;
      for (int i = 0; i <= n_repeats; ++i) {
        others.add_(1);  // fills the cache with something else, as in a step
        stopwatch.begin_together();
        int64_t before = group.counters()[size_t(kind)].bytes;
        auto from = clock::now();
        start(group, Group::Kind(kind), rows)->wait();
        synchronize(device);
        std::chrono::duration<double> time = clock::now() - from;
        sent = group.counters()[size_t(kind)].bytes - before;
        if (i > 0) times.push_back(time.count());  // the first call connects
      }
      samples.push_back({Group::Kind(kind), group.size(), sent, median(std::move(times))});
    }
  }
  return samples;
}

// Bytes of a GPU that are in use, but not by LibTorch's allocator.
int64_t used_by_libraries(c10::Device device) {
  synchronize(device);
  auto* allocator = at::getDeviceAllocator(device.type());
  auto [free, total] = allocator->getMemoryInfo(device.index());
  constexpr size_t all = size_t(c10::CachingAllocator::StatType::AGGREGATE);
  return int64_t(total - free) -
         allocator->getDeviceStats(device.index()).reserved_bytes[all].current;
}

}  // namespace

ClusterSpec calibrate(const Mesh& mesh, const CalibrationOptions& options) {
  const c10::Device device = mesh.device();
  const Processes& processes = mesh.processes();
  const int64_t n = processes.size, n_local = std::max<int64_t>(1, processes.local_size);
  ClusterSpec cluster;
  HostGroup host = this_host(n_local, n_local);
  host.devices = n_local;
  host.count = std::max<int64_t>(1, n / n_local);
  cluster.hosts.push_back(host);
  if (host.count > 1) cluster.network = NetworkFacts{.link = *find_link("eth-10")};
  cluster.reserve = default_reserve(host.device.kind);

  Measurements& measured = cluster.measured;
  Stopwatch stopwatch(mesh.world(), device);
  measure_device(stopwatch, options.seconds, n_local, cluster.hosts.front().device, measured);
  measured.launch_us = measure_launch(stopwatch, 0.1 * options.seconds);
  if (device.is_cuda()) cluster.reserve.context = used_by_libraries(device);
  if (n == 1) return cluster;

  constexpr double seconds_for_large = 5;
  int64_t largest = options.seconds >= seconds_for_large ? 32 * mib : 512 * kib;
  auto samples = time_collectives(mesh.world(), device, largest);
  if (device.is_cuda())
    cluster.reserve.group =
        std::max<int64_t>(0, used_by_libraries(device) - cluster.reserve.context);
  const LinkFacts& link = host.count > 1 ? cluster.network->link : host.link;
  measured.collective[link.name] = fit_link(samples, link.bandwidth);
  return cluster;
}

}  // namespace redco::plan
