// Measures a device and its links.

#include <redco/calibration.h>

#include "device_tables.h"
#include "link_fit.h"
#include "this_host.h"

#include <redco/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

namespace redco::plan {

namespace {

constexpr int64_t kib = 1024, mib = 1024 * kib;

// The two linear layers of a transformer's MLP: `width` numbers of each row become `inner`, and
// those become `width` again.
struct Mlp {
  Mlp(int64_t n_rows, int64_t width, const at::TensorOptions& options)
      : x(at::randn({n_rows, width}, options)),
        up(at::randn({inner_of(width), width}, options)),
        up_bias(at::randn({inner_of(width)}, options)),
        down(at::randn({width, inner_of(width)}, options)),
        down_bias(at::randn({width}, options)) {}

  static constexpr int64_t inner_of(int64_t width) { return 4 * width; }
  // Of a forward and a backward pass.
  static double flops(int64_t n_rows, int64_t width) {
    return 2 * 6.0 * double(n_rows) * double(width) * double(inner_of(width));
  }

  // Keeps the results until the next call, as a step keeps activations and gradients.
  void run() {
    hidden = at::addmm(up_bias, x, up.t());
    y = at::addmm(down_bias, hidden, down.t());
    d_down = at::mm(y.t(), hidden);
    d_hidden = at::mm(y, down);
    d_up = at::mm(d_hidden.t(), x);
    d_x = at::mm(d_hidden, up);
  }

  at::Tensor x, up, up_bias, down, down_bias;
  at::Tensor hidden, y, d_down, d_hidden, d_up, d_x;
};

// The times of forward and backward passes. As in a model, MLPs take turns, so that none is in the
// cache, and values are random: products of ones are 10 % faster on some CPUs.
std::vector<double> time_products(c10::Device device, c10::ScalarType dtype, int64_t n_rows,
                                  int64_t width, double seconds) {
  constexpr size_t cache = 64 * mib;
  const auto options = at::device(device).dtype(dtype);
  std::vector<Mlp> mlps;
  do {
    mlps.emplace_back(n_rows, width, options);
  } while (mlps.size() * (mlps[0].up.nbytes() + mlps[0].down.nbytes()) < cache);
  size_t turn = 0;
  return seconds_of_calls(device, seconds, [&] { mlps[turn++ % mlps.size()].run(); });
}

// The operations per second of products by the smallest size: of the two smallest always, of
// larger ones until one takes too long. Several rounds, if there is time, because the speed of a
// shared machine changes from second to second.
std::vector<std::pair<double, double>> measure_products(c10::Device device, c10::ScalarType dtype,
                                                        double seconds) {
  constexpr int n_rounds = 5, n_sizes = 7;
  constexpr int64_t least = 64, always = 2 * least, most = least << (n_sizes - 1);
  auto width = [](int64_t n) { return std::max<int64_t>(n, 1024); };
  using clock = std::chrono::steady_clock;
  const auto until = clock::now() + std::chrono::duration<double>(seconds);
  int64_t largest = most;
  std::map<int64_t, std::vector<double>> times;
  for (int round = 0; round < n_rounds && (round == 0 || clock::now() < until); ++round)
    for (int64_t n = least; n <= largest; n *= 2) {
      auto some = time_products(device, dtype, n, width(n), seconds / (n_sizes * n_rounds));
      times[n].insert(times[n].end(), some.begin(), some.end());
      // The next one takes twice or eight times as long, and is called twice in a round.
      if (n >= always && (n < width(n) ? 4 : 16) * n_rounds * some.front() > seconds) largest = n;
    }
  std::vector<std::pair<double, double>> rates;
  for (const auto& [n, of_size] : times)
    rates.emplace_back(double(n), Mlp::flops(n, width(n)) / median(of_size));
  return rates;
}

// Bytes per second of an addition to a large tensor.
double measure_bandwidth(c10::Device device, double seconds) {
  at::Tensor a = at::ones({16 * mib}, at::device(device).dtype(at::kFloat)), b = at::zeros_like(a);
  double time = median(seconds_of_calls(device, seconds, [&] { a.add_(b); }));
  return 3 * double(a.nbytes()) / time;
}

// Evaluations of exp per second, on tensors in the cache.
double measure_exp(c10::Device device, double seconds) {
  at::Tensor a = at::ones({mib / 8}, at::device(device).dtype(at::kFloat)), b = at::empty_like(a);
  double time = median(seconds_of_calls(device, seconds, [&] { at::exp_out(b, a); }));
  return double(a.numel()) / time;
}

// Waits until all processes are here: those of one host share its memory, which is as slow in a
// step as when all measure it.
void begin_together(Group& world, c10::Device device) {
  world.all_reduce(at::ones({1}, at::device(device)), ReduceOp::max);
  synchronize(device);
}

// Measures what this device reaches of its peaks. Those of a CPU were measured too: on a busy
// machine they may be too low, and are raised to what is reached.
void measure_device(Group& world, c10::Device device, double seconds, int64_t n_processes,
                    DeviceFacts& facts, Measurements& measured) {
  at::NoGradGuard no_grad;
  const bool is_cpu = facts.kind == DeviceFacts::cpu;
  const double sharing = is_cpu ? double(n_processes) : 1;
  for (auto& [dtype, peak] : facts.flops) {
    Efficiency& efficiency = measured.matmul[dtype];
    begin_together(world, device);
    efficiency.points = measure_products(device, dtype, 0.2 * seconds);
    for (auto [size, rate] : efficiency.points)
      if (is_cpu) peak = std::max(peak, sharing * rate);
    for (auto& [size, rate] : efficiency.points) rate *= sharing / peak;
  }
  begin_together(world, device);
  measured.exp = sharing * measure_exp(device, 0.05 * seconds) / facts.peak(at::kFloat).flops;
  begin_together(world, device);
  double rate = sharing * measure_bandwidth(device, 0.1 * seconds);
  if (is_cpu) facts.bandwidth = std::max(facts.bandwidth, rate);
  measured.bandwidth = rate / facts.bandwidth;
}

// Microseconds of an operator on almost nothing, in a forward and backward pass.
double measure_launch(c10::Device device, double seconds) {
  constexpr int n = 250, n_operators = 4 * n;  // backward has two products and a sum for each
  at::AutoGradMode grad_mode(true);
  at::Tensor a = at::ones({4}, at::device(device)).requires_grad_();
  double time = median(seconds_of_calls(device, seconds, [&] {
    at::Tensor y = a;
    for (int i = 0; i < n; ++i) y = y * a;
    torch::autograd::grad({y.sum()}, {a});
  }));
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

// Times all collectives. What is called depends on the arguments alone: it is the same on all
// processes.
std::vector<CollectiveSample> time_collectives(Group& group, c10::Device device, int64_t largest) {
  using clock = std::chrono::steady_clock;
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
        others.add_(1);  // as in a step, the cache holds something else
        begin_together(group, device);
        int64_t before = group.counters()[size_t(kind)].bytes;
        auto from = clock::now();
        start(group, Group::Kind(kind), rows)->wait();
        synchronize(device);
        std::chrono::duration<double> time = clock::now() - from;
        sent = group.counters()[size_t(kind)].bytes - before;
        if (i > 0) times.push_back(time.count());  // the first one connects
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
  measure_device(mesh.world(), device, options.seconds, n_local, cluster.hosts.front().device,
                 measured);
  measured.launch_us = measure_launch(device, 0.1 * options.seconds);
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
