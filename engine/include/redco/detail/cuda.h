#pragma once

#include <redco/export.h>

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace redco {

/// Loads LibTorch's CUDA library, which is not linked, so that CPU-only programs do not need it.
/// Returns at once if it is already loaded. Throws Error if it, or a library it depends on, is
/// missing, and if there is no usable GPU.
REDCO_API void load_cuda();

/// The same if there is a driver, without errors. Must be called before LibTorch is used: its first
/// backward pass or seed decides permanently whether there are GPUs.
REDCO_API void load_cuda_if_present() noexcept;

/// Returns the GPU of a process, the one with its local rank or the only visible one, and makes it
/// the current device of this thread. Throws UsageError if a host has more processes than GPUs,
/// unless there is one GPU: each process may see a different one. With `is_shared` processes may
/// share a GPU: process i uses GPU i modulo the number of GPUs.
REDCO_API c10::Device use_gpu_of(int64_t local_rank, int64_t local_size, bool is_shared = false);

/// NVIDIA's name of a GPU by its index: "NVIDIA H100 80GB HBM3". Empty if unknown.
REDCO_API std::string cuda_device_name(int number);

}  // namespace redco
