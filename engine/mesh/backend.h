#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace redco {

/// A library that moves the tensors: Gloo or NCCL.
struct Backend {
  c10::intrusive_ptr<c10d::Backend> c10d;
  /// Whether its reduce-scatter moves the least bytes; Gloo's moves as many as an all-reduce.
  bool has_reduce_scatter = false;
  /// Whether its work is queued on the device, where what follows waits for it, and not the host.
  bool runs_on_stream = false;
  /// The next collective meets only those of other processes that were given the same digest; it
  /// waits for one otherwise. Empty where the library cannot.
  std::function<void(uint64_t digest)> expect = {};
};

}  // namespace redco
