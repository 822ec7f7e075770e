#pragma once

#include <redco/mesh.h>

#include <cstdint>
#include <memory>

namespace redco::plan {

/// The size of a mesh by roles.
struct MeshSize {
  int64_t zero = 1;        ///< the processes that share ZeRO's state
  int64_t model = 1;       ///< the processes that share one copy of the model
  int64_t replicated = 1;  ///< the groups that hold copies of ZeRO's state

  int64_t n_copies() const { return zero * replicated; }
  int64_t n_devices() const { return n_copies() * model; }
};

/// The library whose memory for collectives counts: what it, and the group that uses it, allocates
/// on the device besides arguments and results. NCCL's own buffers are reserved for each group.
enum class Library : uint8_t { gloo, nccl };

/// A mesh of any size without other processes, in which this one has rank 0. Its collectives count
/// what they would send, are recorded by the thread's Recorder, and return tensors of the right
/// shapes. A tensor with values counts as equal on all ranks.
REDCO_API std::shared_ptr<Mesh> make_imagined_mesh(const MeshSize& size,
                                                   Library library = Library::gloo,
                                                   c10::Device device = c10::kCPU);

}  // namespace redco::plan
