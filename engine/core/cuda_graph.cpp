// CUDA graphs, in the library redco_cuda.
#include "cuda_graph.h"

#include <ATen/cuda/CUDAGraph.h>

#include <exception>
#include <type_traits>

namespace redco {

namespace {

class Captured : public CudaGraph {
 public:
  explicit Captured(const std::function<void()>& body) {
    // Other threads may go on using the GPU.
    graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    std::exception_ptr error;
    try {
      body();
    } catch (...) {
      error = std::current_exception();
    }
    try {
      graph_.capture_end();
    } catch (...) {
      if (!error) error = std::current_exception();
    }
    if (error) std::rethrow_exception(error);
  }

  void replay() override { graph_.replay(); }

 private:
  at::cuda::CUDAGraph graph_;
};

}  // namespace

}  // namespace redco

extern "C" __attribute__((visibility("default"))) void redco_capture_cuda_graph(
    const std::function<void()>& body, std::unique_ptr<redco::CudaGraph>& result) {
  result = std::make_unique<redco::Captured>(body);
}

static_assert(std::is_same_v<decltype(&redco_capture_cuda_graph), redco::CudaGraphEntry>);
