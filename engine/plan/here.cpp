// The machine that the planner runs on.

#include "../core/require_usage.h"
#include "../train/peak_flops.h"
#include "cluster_names.h"
#include "device_tables.h"

#include <redco/cluster.h>
#include <redco/detail/cuda.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/ones.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <sys/sysinfo.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>

namespace redco {

namespace {

using namespace plan;

// Bytes read and written in a second by copies of 64 MB.
double copy_bandwidth() {
  using clock = std::chrono::steady_clock;
  at::NoGradGuard no_grad;
  constexpr int64_t bytes = 64 << 20;
  at::Tensor from = at::ones({bytes}, at::kByte), to = at::ones({bytes}, at::kByte);
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    auto start = clock::now();
    to.copy_(from);
    std::chrono::duration<double> time = clock::now() - start;
    best = std::max(best, 2.0 * bytes / time.count());
  }
  return best;
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name") && line.find(": ") != std::string::npos)
      return line.substr(line.find(": ") + 2);
  return "CPU";
}

HostGroup this_cpu(int64_t n_processes) {
  DeviceFacts cpu{.name = cpu_name(), .kind = DeviceFacts::cpu, .link = "loopback"};
  cpu.memory = int64_t(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  cpu.bandwidth = copy_bandwidth();
  for (c10::ScalarType dtype : {c10::kFloat, c10::kBFloat16, c10::kDouble})
    cpu.flops[dtype] = *train::peak_flops(c10::kCPU, dtype);
  HostGroup host{.devices = n_processes, .device = cpu, .link = *find_link("loopback")};
  host.cores = std::max<int64_t>(1, at::get_num_threads());
  return host;
}

HostGroup these_gpus(int64_t n) {
  load_cuda();
  std::string name = cuda_device_name(0);
  auto* allocator = at::getDeviceAllocator(c10::kCUDA);
  auto [free, total] = allocator->getMemoryInfo(0);
  (void)free;
  auto device = find_reported_device(name, int64_t(total));
  require_usage(device.has_value(), "--here: the table has no GPU '", name,
                "'; describe it in a cluster.toml, and use --cluster FILE");
  device->memory = int64_t(total);
  HostGroup host{.devices = n, .device = *device, .link = *find_link(device->link)};
  host.cores = int64_t(std::thread::hardware_concurrency());
  return host;
}

}  // namespace

ClusterSpec ClusterSpec::here(int64_t n_processes) {
  require_usage(n_processes > 0, "--here: the number of processes must be positive, got ",
                n_processes);
  ClusterSpec cluster;
  load_cuda_if_present();
  int64_t n_gpus = at::hasCUDA() ? at::detail::getCUDAHooks().deviceCount() : 0;
  cluster.hosts.push_back(n_gpus > 0 ? these_gpus(n_gpus) : this_cpu(n_processes));
  cluster.reserve = default_reserve(cluster.device().kind);
  return cluster;
}

}  // namespace redco
