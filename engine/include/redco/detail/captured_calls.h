#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace redco {

class CudaGraph;

/// Calls of a function whose work on a GPU is the same each time: it reads and writes the same
/// tensors, and nothing on the host depends on their values. The second call captures a CUDA graph,
/// which later calls replay without calling the function. On other devices each call calls it.
class REDCO_API CapturedCalls {
 public:
  CapturedCalls(c10::Device device, std::function<at::Tensor()> function);
  ~CapturedCalls();
  CapturedCalls(const CapturedCalls&) = delete;
  CapturedCalls& operator=(const CapturedCalls&) = delete;

  /// Returns the function's result. Calls that replay write into the same tensor. Throws Error if
  /// the work cannot be captured, as when it reads a value of the GPU.
  at::Tensor operator()();

 private:
  void capture();

  c10::Device device_;
  std::function<at::Tensor()> function_;
  at::Tensor result_;
  std::unique_ptr<CudaGraph> graph_;
  bool was_called_ = false;
};

}  // namespace redco
