// Measures the time, throughput and memory of training steps.

#include "step_meter.h"

#include "peak_flops.h"

#include <redco/group.h>
#include <redco/moves.h>

#include <c10/core/CachingDeviceAllocator.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace redco::train {

namespace {

// The second number in /proc/self/statm is the number of resident pages.
double resident_bytes() {
  char text[200] = "";
  int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  long size = 0, resident = 0;
  if (read(file, text, sizeof(text) - 1) > 0) std::sscanf(text, "%ld %ld", &size, &resident);
  close(file);
  return double(resident) * double(sysconf(_SC_PAGESIZE));
}

double peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return double(usage.ru_maxrss) * 1024;
}

}  // namespace

StepMeter::StepMeter(bool enabled, c10::Device device, c10::ScalarType dtype, bool is_alone)
    : enabled_(enabled), device_(device), dtype_(dtype), is_alone_(is_alone) {}

std::unique_ptr<FlopCounter> StepMeter::start(int64_t step, int64_t n_examples) {
  if (!enabled_) return nullptr;
  if (running_) end();
  running_ = step;
  n_examples_ = n_examples;
  n_tokens_ = 0;
  collate_ = {};
  in_collectives_ = seconds_in_collectives();
  gathered_bytes_ = move_counters().gathered_bytes;
  start_ = clock::now();
  return flops_per_unit_ ? nullptr : std::make_unique<FlopCounter>(flops_);
}

std::map<std::string, double> StepMeter::with_measured(std::map<std::string, double> metrics,
                                                       int64_t step) {
  if (running_ == step) end();
  metrics.insert(metrics_.begin(), metrics_.end());
  return metrics;
}

void StepMeter::end() {
  using seconds = std::chrono::duration<double>;
  double time = seconds(clock::now() - start_).count();
  double units = double(n_tokens_ > 0 ? n_tokens_ : n_examples_);
  running_.reset();
  if (flops_ > 0 && !flops_per_unit_) {
    flops_per_unit_ = flops_ / units;
    peak_ = peak_flops(device_, dtype_);
  }
  metrics_ = {{"step_seconds", time},
              {"examples_per_second", double(n_examples_) / time},
              {"collate_seconds", seconds(collate_).count()}};
  if (n_tokens_ > 0) metrics_["tokens_per_second"] = double(n_tokens_) / time;
  if (device_.is_cpu()) metrics_["collective_seconds"] = seconds_in_collectives() - in_collectives_;
  if (!is_alone_)
    metrics_["gathered_bytes"] = double(move_counters().gathered_bytes - gathered_bytes_);
  if (flops_per_unit_) add_mfu(*flops_per_unit_ * units / time);
  add_memory();
}

void StepMeter::add_mfu(double flops_per_second) {
  if (peak_ && flops_per_second > *peak_) peak_ = peak_flops(device_, dtype_, flops_per_second);
  // A peak that the model exceeds is wrong, and so is the fraction.
  if (peak_ && flops_per_second <= *peak_) metrics_["mfu"] = flops_per_second / *peak_;
}

void StepMeter::count_tokens(const Tree& batch) {
  if (!batch.is<Tree::Dict>()) return;
  const auto& entries = batch.as<Tree::Dict>();
  auto ids = entries.find("input_ids");
  if (ids != entries.end() && ids->second.is_tensor()) n_tokens_ += ids->second.tensor().numel();
}

void StepMeter::add_memory() {
  if (device_.is_cpu()) {
    double resident = resident_bytes();
    metrics_["memory_bytes"] = resident;
    // The two values are not read at the same moment.
    metrics_["peak_memory_bytes"] = std::max(resident, peak_resident_bytes());
    return;
  }
  constexpr auto all = size_t(c10::CachingAllocator::StatType::AGGREGATE);
  auto stats = c10::getDeviceAllocator(device_.type())->getDeviceStats(device_.index());
  metrics_["memory_bytes"] = double(stats.allocated_bytes[all].current);
  metrics_["peak_memory_bytes"] = double(stats.allocated_bytes[all].peak);
  metrics_["reserved_memory_bytes"] = double(stats.reserved_bytes[all].current);
}

}  // namespace redco::train
