// Measures a device and its links.

#include <redco/calibration.h>

#include "device_tables.h"
#include "link_fit.h"
#include "this_host.h"

#include <redco/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

namespace redco::plan {

namespace {

constexpr int64_t kib = 1024, mib = 1024 * kib;

// The operations per second of square products by size, until one takes too long.
std::vector<std::pair<double, double>> measure_products(c10::Device device, c10::ScalarType dtype,
                                                        double seconds) {
  std::vector<std::pair<double, double>> rates;
  constexpr int n_sizes = 7;
  for (int64_t n = 64; n <= 4096; n *= 2) {
    at::Tensor a = at::ones({n, n}, at::device(device).dtype(dtype)), b = at::ones_like(a),
               c = at::empty_like(a);
    double time = least_seconds(device, seconds / n_sizes, [&] { at::mm_out(c, a, b); });
    rates.emplace_back(double(n), 2.0 * double(n) * double(n) * double(n) / time);
    // The next one takes eight times as long, twice.
    if (16 * time > seconds) break;
  }
  return rates;
}

// Bytes per second of an addition of large tensors.
double measure_bandwidth(c10::Device device, double seconds) {
  at::Tensor a = at::ones({16 * mib}, at::device(device).dtype(at::kFloat)), b = at::ones_like(a),
             c = at::ones_like(a);
  double time = least_seconds(device, seconds, [&] { at::add_out(c, a, b); });
  return 3 * double(a.nbytes()) / time;
}

// Measures what this device reaches of its peaks. Those of a CPU were measured too: on a busy
// machine they may be too low, and are raised to what is reached.
void measure_device(c10::Device device, double seconds, int64_t n_processes, DeviceFacts& facts,
                    Measurements& measured) {
  const bool is_cpu = facts.kind == DeviceFacts::cpu;
  const double sharing = is_cpu ? double(n_processes) : 1;
  for (auto& [dtype, peak] : facts.flops) {
    Efficiency& efficiency = measured.matmul[dtype];
    efficiency.points = measure_products(device, dtype, 0.2 * seconds);
    for (auto [size, rate] : efficiency.points)
      if (is_cpu) peak = std::max(peak, sharing * rate);
    for (auto& [size, rate] : efficiency.points) rate *= sharing / peak;
  }
  double rate = sharing * measure_bandwidth(device, 0.1 * seconds);
  if (is_cpu) facts.bandwidth = std::max(facts.bandwidth, rate);
  measured.bandwidth = rate / facts.bandwidth;
}

// Microseconds of an operator on almost nothing.
double measure_launch(c10::Device device, double seconds) {
  constexpr int n = 1000;
  at::Tensor a = at::ones({4}, at::device(device)), b = at::ones_like(a);
  double time = least_seconds(device, seconds, [&] {
    for (int i = 0; i < n; ++i) at::add(a, b);
  });
  return 1e6 * time / n;
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
  at::Tensor barrier = at::ones({1}, at::device(device));
  for (int64_t bytes = kib; bytes <= largest; bytes *= 8) {
    int64_t columns = std::max<int64_t>(1, bytes / (4 * group.size()));
    for (int kind = 0; kind < Group::n_kinds; ++kind) {
      at::Tensor rows = at::ones({group.size(), columns}, at::device(device));
      constexpr int n_repeats = 5;
      std::vector<double> times;
      int64_t sent = 0;
      for (int i = 0; i <= n_repeats; ++i) {
        group.all_reduce(barrier.fill_(1), ReduceOp::max);
        synchronize(device);
        int64_t before = group.counters()[size_t(kind)].bytes;
        auto from = clock::now();
        start(group, Group::Kind(kind), rows)->wait();
        synchronize(device);
        std::chrono::duration<double> time = clock::now() - from;
        sent = group.counters()[size_t(kind)].bytes - before;
        if (i > 0) times.push_back(time.count());  // the first one connects
      }
      std::nth_element(times.begin(), times.begin() + n_repeats / 2, times.end());
      samples.push_back({Group::Kind(kind), group.size(), sent, times[n_repeats / 2]});
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
  measure_device(device, options.seconds, n_local, cluster.hosts.front().device, measured);
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
