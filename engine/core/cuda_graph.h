#pragma once

#include <functional>
#include <memory>

namespace redco {

/// A CUDA graph: work of a GPU that was captured instead of done, and can be done any number of
/// times without the host's part of it.
class CudaGraph {
 public:
  virtual ~CudaGraph() = default;
  /// Queues the work on the current stream.
  virtual void replay() = 0;
};

/// The function of the library redco_cuda that captures what `body` queues on the current stream,
/// which must not be the default one.
constexpr const char* cuda_graph_entry = "redco_capture_cuda_graph";
using CudaGraphEntry = void (*)(const std::function<void()>& body,
                                std::unique_ptr<CudaGraph>& result);

}  // namespace redco
