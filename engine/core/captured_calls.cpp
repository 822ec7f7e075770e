#include <redco/detail/captured_calls.h>

#include "cuda_graph.h"
#include "cuda_library.h"

#include <redco/error.h>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>
#include <string>
#include <utility>

namespace redco {

CapturedCalls::CapturedCalls(c10::Device device, std::function<at::Tensor()> function)
    : device_(device), function_(std::move(function)) {}

CapturedCalls::~CapturedCalls() = default;

void CapturedCalls::capture() {
  static const auto entry =
      reinterpret_cast<CudaGraphEntry>(function_of_cuda_library(cuda_graph_entry, "CUDA graphs"));
  const c10::impl::VirtualGuardImpl streams(device_.type());
  const c10::Stream stream = streams.getStreamFromGlobalPool(device_);
  c10::Event before(device_.type());
  before.record(streams.getStream(device_));
  before.block(stream);
  const c10::StreamGuard on_stream(stream);
  try {
    entry([this] { result_ = function_(); }, graph_);
  } catch (const std::exception& error) {
    // Catches std::exception, because errors of a script's function are not LibTorch's.
    const std::string text = error.what();
    if (text.find("captur") == text.npos) throw;
    fail("cannot capture a CUDA graph, probably because the host reads a value of the GPU: ", text);
  }
}

at::Tensor CapturedCalls::operator()() {
  // The first call compiles kernels and chooses algorithms, which cannot be captured.
  if (!device_.is_cuda() || !std::exchange(was_called_, true)) return function_();
  if (graph_ == nullptr) capture();
  graph_->replay();
  return result_;
}

}  // namespace redco
