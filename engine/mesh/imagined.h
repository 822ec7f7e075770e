#pragma once

#include <redco/mesh.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace redco::mesh {

/// The size of a mesh by roles.
struct MeshSize {
  int64_t zero = 1;        ///< the copies of the model that share ZeRO's state
  int64_t model = 1;       ///< the processes that share one copy of the model
  int64_t replicated = 1;  ///< the groups that hold copies of ZeRO's state
  int64_t context = 1;     ///< the processes that share the positions of each example
  int64_t experts = 1;     ///< the copies of the model that share the experts of mixtures
  int64_t stages = 1;      ///< of a pipeline
  int64_t stage = 0;       ///< that of this process
  int64_t chunks = 1;      ///< of each stage

  int64_t n_copies() const { return zero * replicated * experts; }
  int64_t n_devices() const { return n_copies() * model * context * stages; }
};

/// The library whose memory for collectives counts: what it, and the group that uses it, allocates
/// on the device besides arguments and results. NCCL's own buffers are reserved for each group.
enum class Library : uint8_t { gloo, nccl };

/// A collective that one process takes part in.
struct Collective {
  Group::Kind kind = Group::all_reduce_kind;
  std::optional<Mesh::Dim> dim = std::nullopt;  ///< the group's dimension; none for the world
  int64_t n_ranks = 1;
  int64_t rank_step = 1;  ///< the ranks of the group are r, r + rank_step, ... (Mesh::Line)
  /// The bytes that this process sends, as in Group::counters: 2 S (n - 1) / n for an all-reduce of
  /// S bytes, S (n - 1) for an all-gather of parts of S bytes, and S (n - 1) / n for a
  /// reduce-scatter or an all-to-all of n rows of S bytes in all.
  int64_t bytes_sent = 0;
};

/// Is told of the collectives of imagined meshes on this thread, while it exists.
class CollectiveObserver {
 public:
  CollectiveObserver();
  virtual ~CollectiveObserver();
  CollectiveObserver(const CollectiveObserver&) = delete;
  CollectiveObserver& operator=(const CollectiveObserver&) = delete;

  /// Returns a number for `waited`; none: it is not observed.
  virtual std::optional<int64_t> started(const Collective& collective) = 0;
  virtual void waited(int64_t number) = 0;
  /// Around the memory that a group allocates.
  virtual void enter() = 0;
  virtual void leave() = 0;

 private:
  CollectiveObserver* outer_;
};

/// A mesh of any size without other processes, in which this one has the first rank of its stage.
/// Its collectives count what they would send, tell the thread's observer, and return tensors of
/// the right shapes. A tensor with values counts as equal on all ranks.
REDCO_API std::shared_ptr<Mesh> make_imagined_mesh(const MeshSize& size,
                                                   Library library = Library::gloo,
                                                   c10::Device device = c10::kCPU);

/// A group of such a mesh, of any size and with any own rank.
std::unique_ptr<Group> make_imagined_group(std::string name, int64_t size, int64_t rank);

}  // namespace redco::mesh
