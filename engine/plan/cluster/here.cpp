// The machine that the planner runs on.

#include <redco/calibration.h>
#include "../../core/require_usage.h"
#include "../../train/measures/peak_flops.h"
#include "cluster_names.h"
#include "device_tables.h"
#include "this_host.h"

#include <redco/cluster.h>
#include <redco/detail/cores.h>
#include <redco/detail/cuda.h>
#include <redco/detail/user_folder.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/ones.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace redco {

namespace plan {

namespace {

int64_t n_gpus() {
  load_cuda_if_present();
  return at::hasCUDA() ? at::detail::getCUDAHooks().deviceCount() : 0;
}

// Bytes read and written in a second by copies of 64 MB, for a tenth of a second.
double copy_bandwidth() {
  using clock = std::chrono::steady_clock;
  constexpr int64_t bytes = 64 << 20;
  at::Tensor from = at::ones({bytes}, at::kByte), to = at::ones({bytes}, at::kByte);
  std::vector<double> times;
  const auto until = clock::now() + std::chrono::milliseconds(100);
  do {
    auto start = clock::now();
    to.copy_(from);
    times.push_back(std::chrono::duration<double>(clock::now() - start).count());
  } while (clock::now() < until);
  return 2.0 * bytes / median(std::move(times));
}

HostGroup this_cpu(int64_t n_processes, int64_t n_measuring) {
  DeviceFacts cpu{.name = this_device_name(), .kind = DeviceFacts::cpu, .link = "loopback"};
  cpu.matmul_share = 0.9;
  cpu.memory = memory_of(c10::kCPU, 1);
  cpu.bandwidth = double(n_measuring) * copy_bandwidth();
  for (c10::ScalarType dtype : {c10::kFloat, c10::kBFloat16, c10::kDouble})
    cpu.flops[dtype] = double(n_measuring) * *train::peak_flops(c10::kCPU, dtype);
  HostGroup host{.devices = n_processes, .device = cpu, .link = *find_link("loopback")};
  host.cores = n_measuring * at::get_num_threads();
  return host;
}

HostGroup these_gpus(int64_t n, int64_t n_measuring) {
  std::string name = this_device_name();
  auto total = int64_t(at::getDeviceAllocator(c10::kCUDA)->getMemoryInfo(0).second);
  auto device = find_reported_device(name, total);
  require_usage(device.has_value(), "--here: the table has no GPU '", name,
                "'; describe it in a cluster.toml, and use --cluster FILE");
  device->memory = total;
  HostGroup host{.devices = n, .device = *device, .link = *find_link(device->link)};
  host.cores = n_measuring * cores_per_process(n_measuring);
  return host;
}

void check_processes(int64_t n) {
  require_usage(n > 0 && n <= most_devices, "--here: the number of processes must be from 1 to ",
                most_devices, ", got ", n);
}

}  // namespace

std::string this_device_name() {
  if (n_gpus() > 0) return cuda_device_name(0);
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name") && line.find(": ") != std::string::npos)
      return line.substr(line.find(": ") + 2);
  return "CPU";
}

HostGroup this_host(int64_t n_processes, int64_t n_measuring) {
  int64_t n = n_gpus();
  return n > 0 ? these_gpus(n, n_measuring) : this_cpu(n_processes, n_measuring);
}

int64_t memory_of(c10::Device device, int64_t n_processes) {
  if (device.is_cpu())
    return int64_t(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE) / n_processes;
  return int64_t(at::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).second);
}

void synchronize(c10::Device device) {
  if (device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

double median(std::vector<double> values) {
  auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string calibration_file() {
  std::string folder = user_folder("XDG_CACHE_HOME", "/.cache");
  return folder.empty() ? "" : folder + "/redco/calibration.toml";
}

ClusterSpec here_calibrated(int64_t n_processes) {
  check_processes(n_processes);
  std::string file = calibration_file();
  std::error_code ignored;
  if (!file.empty() && std::filesystem::exists(file, ignored)) {
    ClusterSpec cluster = ClusterSpec::read(file);
    const HostGroup& host = cluster.hosts.front();
    bool is_gpu = host.device.kind == DeviceFacts::gpu;
    auto listed =
        is_gpu ? find_reported_device(this_device_name(), host.device.memory) : std::nullopt;
    std::string name = is_gpu ? (listed ? listed->name : "") : this_device_name();
    if (cluster.n_hosts() == 1 && host.device.name == name) {
      // A CPU's facts are those of the whole host, for any number of processes.
      if (!is_gpu) cluster.hosts.front().devices = n_processes;
      return cluster;
    }
  }
  return ClusterSpec::here(n_processes);
}

}  // namespace plan

ClusterSpec ClusterSpec::here(int64_t n_processes) {
  plan::check_processes(n_processes);
  ClusterSpec cluster;
  cluster.hosts.push_back(plan::this_host(n_processes));
  cluster.reserve = plan::default_reserve(cluster.device().kind);
  return cluster;
}

}  // namespace redco
