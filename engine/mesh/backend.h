#pragma once

#include <redco/export.h>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace redco {

/// A library that moves the tensors: Gloo or NCCL.
struct REDCO_API Backend {
  c10::intrusive_ptr<c10d::Backend> c10d;
  /// Whether its reduce-scatter moves the least bytes; Gloo's moves as many as an all-reduce.
  bool has_reduce_scatter = false;
  /// Whether its work is queued on the device, where what follows waits for it, and not the host.
  bool runs_on_stream = false;
  /// The next collective meets only those of other processes that were given the same digest; it
  /// waits for one otherwise. Empty where the library cannot.
  std::function<void(uint64_t digest)> expect = {};
  /// Whether `abort` was called: what was queued on the stream has ended, with garbage.
  std::shared_ptr<std::atomic<bool>> is_aborted = std::make_shared<std::atomic<bool>>(false);

  void abort() const;
  /// The same as a function that does not keep the backend.
  std::function<void()> aborter() const;
};

/// What a backend on devices needs to connect the ranks that share a store.
struct DeviceRequest {
  c10::intrusive_ptr<c10d::Store> store;
  int64_t rank = 0;
  int64_t size = 1;
  std::chrono::milliseconds timeout = {};
  c10::Device device = c10::Device(c10::kCUDA, 0);
};

/// How the processes of a run use the devices of a type.
struct DeviceBackend {
  /// The device of a process of this host; makes it the current one of this thread. Throws
  /// UsageError where that cannot be, as for processes that must not share one.
  c10::Device (*use_device)(int64_t local_rank, int64_t local_size, bool is_shared);
  Backend (*connect)(const DeviceRequest& request);
};
/// Names the backend of a device type. Those of CUDA are there.
REDCO_API void set_device_backend(c10::DeviceType type, const DeviceBackend& backend);
/// Throws UsageError for a type without one.
const DeviceBackend& device_backend(c10::DeviceType type);

}  // namespace redco
