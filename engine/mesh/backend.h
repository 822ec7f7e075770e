#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace redco::mesh {

/// Whether a group only sends messages from its rank 0 to its rank 1, in an order that no other
/// process knows: to the next stage of a pipeline, or back. With two stages both may have the same
/// direction.
enum class LinkKind : uint8_t { none, forward, back };

/// A communication library: Gloo or NCCL.
struct REDCO_API Backend {
  c10::intrusive_ptr<c10d::Backend> c10d;
  /// Whether its reduce-scatter sends the minimum number of bytes; Gloo's sends as many as an
  /// all-reduce.
  bool has_reduce_scatter = false;
  /// Sends a tensor to each other rank and receives one from each, without copies. Both lists are
  /// by rank, and what they have for this rank is not used. Empty tensors are not sent. Not set if
  /// the library is faster at all-gathers and small all-reduces (is_exchanged): Gloo's run in a
  /// ring, in several messages one after the other, and copy the result.
  std::function<c10::intrusive_ptr<c10d::Work>(std::vector<at::Tensor> sent,
                                               std::vector<at::Tensor> received)>
      exchange = {};
  /// Whether its work is queued on a device stream, so that later work there waits for it and the
  /// host does not.
  bool runs_on_stream = false;
  /// Sets the digest of the next collective, which then only matches collectives of other processes
  /// with the same digest and otherwise waits for one. Empty if the library does not support this.
  std::function<void(uint64_t digest)> expect = {};
  /// Whether `abort` was called: queued work has ended with garbage results.
  std::shared_ptr<std::atomic<bool>> is_aborted = std::make_shared<std::atomic<bool>>(false);

  void abort() const;
  /// The same as a function that does not keep the backend alive.
  std::function<void()> aborter() const;
};

/// The arguments for connecting the ranks that share a store on their devices.
struct DeviceRequest {
  c10::intrusive_ptr<c10d::Store> store;
  int64_t rank = 0;
  int64_t size = 1;
  std::chrono::milliseconds timeout = {};
  c10::Device device = c10::Device(c10::kCUDA, 0);
};

/// How the processes of a run use a type of device.
struct DeviceBackend {
  /// Returns the device of a process of this host and makes it the current one of this thread.
  /// Throws UsageError if that is impossible, as for processes that must not share a device.
  c10::Device (*use_device)(int64_t local_rank, int64_t local_size, bool is_shared);
  Backend (*connect)(const DeviceRequest& request);
};
/// Registers the backend of a device type. The one for CUDA is predefined.
REDCO_API void set_device_backend(c10::DeviceType type, const DeviceBackend& backend);
/// Returns the backend of a device type. Throws UsageError if there is none.
REDCO_API const DeviceBackend& device_backend(c10::DeviceType type);

}  // namespace redco::mesh
