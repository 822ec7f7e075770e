// The differences between the LibTorch releases that redco-lua supports; CMakeLists.txt has their
// range. No other file names a release or declares a LibTorch function.
#pragma once

#include <redco/error.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <torch/version.h>

#define REDCO_LIBTORCH_IS_SINCE(minor) (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= minor)

namespace redco {

/// Why kernels of ours cannot be put into a stream of LibTorch; empty if they can.
/// `handle_of` is a stream's handle in the library of its device, such as a CUstream.
#if REDCO_LIBTORCH_IS_SINCE(11)
constexpr const char* no_handles = "";
inline void* handle_of(const c10::Stream& stream) { return stream.native_handle(); }
#else
constexpr const char* no_handles =
    "LibTorch " TORCH_VERSION " does not give the handle of a stream; LibTorch 2.11 does";
[[noreturn]] inline void* handle_of(const c10::Stream&) { fail(no_handles); }
#endif

/// Whether a single quantile is selected in memory, not by dispatched operators. LibTorch 2.15 does
/// so; those between were not tried.
constexpr bool selects_quantile_in_memory = REDCO_LIBTORCH_IS_SINCE(12);

}  // namespace redco

// Functions that LibTorch defines but declares in no header. The symbols are weak: if a release
// lacks one, its address is null, so callers must check the address.
namespace at::native {

/// result = alpha a b + beta result, of matrices or batches of them, by oneDNN. Operands are
/// contiguous or transposed.
[[gnu::weak]] void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& result, float beta,
                                 float alpha);

}  // namespace at::native
