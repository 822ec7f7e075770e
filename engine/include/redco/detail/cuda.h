#pragma once

#include <redco/export.h>

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace redco {

/// Loads LibTorch's CUDA library, which programs that stay on the CPU do not carry. Quick when it
/// is loaded already. Throws Error when it, or a library it needs, is missing, and when there is no
/// GPU that it can use.
REDCO_API void load_cuda();

/// The same where there is a driver, without errors. To be called before LibTorch is used: its
/// first backward pass or seed decides for good whether there are GPUs.
REDCO_API void load_cuda_if_present() noexcept;

/// The GPU of a process: that of its number on the host, or the only one that it sees. Makes it the
/// current device of this thread. Throws UsageError where a host has more processes than GPUs, but
/// for one GPU: the processes may see one each. With `is_shared` processes may share a GPU: process
/// i takes number i modulo the GPUs.
REDCO_API c10::Device use_gpu_of(int64_t local_rank, int64_t local_size, bool is_shared = false);

/// What NVIDIA calls the GPU of this number: "NVIDIA H100 80GB HBM3". Empty where nobody knows.
REDCO_API std::string cuda_device_name(int number);

}  // namespace redco
