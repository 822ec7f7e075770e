#pragma once

// Devices in memory of the host that work as GPUs do: operators and collectives are queued on
// streams, each with a thread of its own, and the host runs ahead. They are of the type
// PrivateUse1. What a GPU leaves to chance is made visible: freed memory is overwritten as soon as
// its stream allows that, an aborted collective leaves garbage, and streams can be stopped.

#include "../../engine/mesh/backend.h"

#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>

#include <chrono>
#include <cstdint>
#include <vector>

namespace fake {

constexpr c10::DeviceType type = c10::kPrivateUse1;
constexpr int64_t n_devices = 4;

/// Registers the devices, and their backend for meshes. To be called first.
void use_devices();

/// While it lives no stream goes on.
class Paused {
 public:
  Paused();
  ~Paused();
  Paused(const Paused&) = delete;
  Paused& operator=(const Paused&) = delete;
};

/// How often the host has blocked on a stream that had not come to its end: nothing ends that wait.
int64_t n_blocked();
/// Bytes that tensors hold, and those whose streams still have to give them free.
int64_t live_bytes();
/// Whether nobody has written to memory after it was given free.
bool freed_memory_is_intact();
/// The device of the thread that connected the last backend.
c10::Device connecting_device();

/// A backend whose collectives are Gloo's, queued on a stream of their own, like NCCL's.
redco::mesh::Backend on_stream(const redco::mesh::DeviceRequest& request);
/// How many were made.
int64_t n_connected();
/// The times at which backends were shut down.
std::vector<std::chrono::steady_clock::time_point> shutdowns();

}  // namespace fake
