#pragma once

#include <redco/export.h>
#include <redco/group.h>

#include <c10/core/Device.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace redco {

class Notes;

/// How the caller identifies this process; fields that are not set are read from the environment.
struct ProcessOptions {
  std::optional<int64_t> n_processes = std::nullopt;
  std::optional<int64_t> process_id = std::nullopt;
  std::optional<std::string> host0_address = std::nullopt;
  std::optional<int64_t> host0_port = std::nullopt;
};

/// The rank of this process and the size of the run, which has one process per device.
struct Processes {
  int64_t rank = 0;
  int64_t size = 1;
  int64_t local_rank = 0;  ///< the rank on this host: the index of the device it uses
  int64_t local_size = 1;
  std::string store_address =
      {};  ///< where the store listens; empty for one process, which needs none
  int64_t store_port = 0;
  bool hosts_store = false;  ///< whether this process opens the store
  /// Whether the address is that of torchrun's store, where process 0 publishes the address of the
  /// run's own store.
  bool is_announced = false;
  std::string secret = {};  ///< the run's secret; empty: the user's (redco/detail/run_secret.h)
  int64_t attempt = 0;      ///< the number of restarts so far
  std::string run = {};     ///< distinguishes runs that may share a store
  bool is_worker = false;   ///< whether torchrun, or redco-lua's launcher, started it
  std::string source = "one process";  ///< the origin of these values, for the log
};

/// If this variable is set along with torchrun's, MASTER_ADDR and MASTER_PORT are the address of
/// the run's own store (redco/detail/run_store.h).
constexpr const char* launcher_store_variable = "REDCO_LAUNCHER_STORE";

/// Determines the processes from the variables of torchrun (RANK, WORLD_SIZE, LOCAL_RANK,
/// LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), of Open MPI's mpirun, of a Slurm step, or of an
/// mpirun of the MPICH family; else from the options; else from REDCO_N_PROCESSES,
/// REDCO_PROCESS_ID, REDCO_HOST0_ADDRESS and REDCO_HOST0_PORT, which correspond to the options;
/// else assumes one process. Throws UsageError for inconsistent values and for sources that
/// contradict each other.
REDCO_API Processes find_processes(const ProcessOptions& options = {});

/// The environment variable that selects the backend of collectives on GPUs. "nccl" is the default.
/// With "gloo" Gloo runs them on the CPU and copies the tensors there and back: slower than NCCL,
/// but several processes can share a GPU.
constexpr const char* collectives_variable = "REDCO_COLLECTIVES";

/// Values of `zero_group` that are not a number of processes.
constexpr int64_t zero_group_of_all = 0, zero_group_of_host = -1;

struct MeshOptions {
  Processes processes = {};
  int64_t n_model_shards = 1;
  int64_t n_context_shards = 1;
  int64_t n_expert_shards = 1;
  int64_t n_pipeline_stages = 1;
  int64_t n_chunks_per_stage = 1;
  /// The number of data-parallel processes that share the state that ZeRO splits; each group of
  /// them has a copy of it (hybrid sharding). zero_group_of_all: one group; zero_group_of_host: the
  /// processes of one host.
  int64_t zero_group = zero_group_of_all;
  c10::DeviceType device_type = c10::kCPU;
  /// The timeout of a collective.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

/// The processes of a run as a grid. The processes that differ only in their coordinate along one
/// dimension are that dimension's group.
class REDCO_API Mesh : public std::enable_shared_from_this<Mesh> {
 public:
  /// Parameters are split over mp, the batch over dp, dp_replicate and ep, the positions of each
  /// example over cp; the experts of mixtures are split over ep. ZeRO splits its state over dp,
  /// ep and cp, that of experts over dp and cp, and the ranks along dp_replicate hold copies of it.
  /// Along pp each rank has the parameters of some blocks of the model.
  /// If several dimensions of the mesh split one dimension of a tensor, they do so in this order:
  /// examples first, then the positions of each, which sequence parallelism splits further.
  enum Dim : uint8_t { dp = 0, dp_replicate = 1, ep = 2, cp = 3, mp = 4, pp = 5, n_dims = 6 };

  /// The purpose of a dimension of the mesh. Code outside of mesh/ and sharding/ names roles, not
  /// dimensions.
  enum Role : uint8_t {
    batch = 1,      ///< its ranks have different examples
    zero = 2,       ///< its ranks share the state that ZeRO splits
    model = 4,      ///< its ranks share one copy of the model, and its work on each example
    context = 8,    ///< its ranks have different positions of the same examples
    expert = 16,    ///< its ranks have different experts of a mixture
    pipeline = 32,  ///< its ranks have different blocks of the model, which compute in turn
    data = batch | context,  ///< its ranks have different data: gradients are summed over it
  };

  struct Facts {
    const char* name;
    uint8_t roles;
    bool is_optional;  ///< it splits nothing unless it is asked for; then it is not shown
  };
  static constexpr std::array<Facts, n_dims> facts = {{
      {"dp", batch | zero, false},
      {"dp_replicate", batch, true},
      {"ep", batch | zero | expert, true},
      {"cp", context | zero, true},
      {"mp", model, false},
      {"pp", pipeline, true},
  }};

  static constexpr std::array<Dim, n_dims> dims = {dp, dp_replicate, ep, cp, mp, pp};
  /// Ranks count up along these dimensions, along the first one fastest: the groups of the first
  /// ones lie within a host.
  static constexpr std::array<Dim, n_dims> from_innermost = {mp, cp, ep, dp, dp_replicate, pp};

  static constexpr bool has(Dim dim, Role role) { return (facts[dim].roles & role) != 0; }
  /// The dimensions that have a role.
  static std::vector<Dim> dims_of(Role role);
  /// The dimension that has a role, for a role that only one has.
  static consteval Dim dim_of(Role role) {
    int n = 0;
    Dim found = n_dims;
    for (Dim dim : dims)
      if (has(dim, role)) found = dim, ++n;
    return n == 1 ? found : throw "several dimensions have this role";
  }

  /// The ranks of a group: `first`, `first + step`, ...
  struct Line {
    int64_t first, step, size;
  };
  using Shape = std::array<int64_t, n_dims>;
  /// The group along `dim` that `rank` belongs to, in a grid of this shape.
  static Line line_of(Dim dim, const Shape& shape, int64_t rank);

  /// Connects the processes; returns when all are connected. Throws Error if a process does not
  /// connect, and UsageError if n_model_shards, n_context_shards, n_expert_shards,
  /// n_pipeline_stages or zero_group does not divide their number, or there are chunks without
  /// stages.
  static std::shared_ptr<Mesh> make(const MeshOptions& options);

  virtual ~Mesh() = default;
  virtual const Processes& processes() const = 0;
  virtual c10::Device device() const = 0;
  virtual Group& group(Dim dim) const = 0;
  virtual Group& world() const = 0;
  /// Throws Error for a mesh that has no processes behind it.
  virtual Notes& notes() const;
  /// How often its processes have reconnected after turns that failed (redco/detail/turns.h). A
  /// reconnect invalidates communication that was in progress and any record of the processes'
  /// common order.
  virtual int64_t reconnects() const { return 0; }

  /// Whether activations [batch, sequence, features] that are partial sums over mp are
  /// reduce-scattered along the sequence dimension instead of all-reduced (arXiv 2205.05198).
  bool sequence_parallel() const { return sequence_parallel_; }
  void set_sequence_parallel(bool is_on) { sequence_parallel_ = is_on; }

  /// Memory of the operators' rules about calls on this mesh, which all its processes make alike.
  std::shared_ptr<void>& remembered() const { return remembered_; }

  /// The chunks of consecutive blocks that each rank along pp has. Each counts as a stage of its
  /// own: stage i is on rank i % size(pp).
  int64_t n_chunks_per_stage() const { return n_chunks_per_stage_; }
  int64_t n_stages() const { return size(pipeline) * n_chunks_per_stage_; }
  /// The stage whose tensors lie on this mesh (of_stage); none for the mesh of the whole run.
  virtual std::optional<int64_t> stage() const { return std::nullopt; }
  /// Whether that is the stage of another process, or not the one that computes: its tensors have
  /// no values here.
  virtual bool is_absent() const { return false; }
  /// The part of this mesh that is one stage: the same dimensions without pp. Of another stage
  /// than the own ones, it holds tensors that have shapes and placements, and no values. With
  /// `computing`, that of all stages computes alone. On the mesh of a stage: as that one was made.
  virtual std::shared_ptr<const Mesh> of_stage(
      int64_t stage, std::optional<int64_t> computing = std::nullopt) const;
  /// The mesh of the whole run.
  virtual std::shared_ptr<const Mesh> of_run() const { return shared_from_this(); }
  /// The group of this process and the one with the same coordinates in a neighbouring stage, in
  /// which `from`, of rank 0, sends to `to`. One of them is on the own rank.
  Group& link(int64_t from, int64_t to) const;
  /// Those of this process, by the first stages, `from` and `to`, that they connect.
  using Links = std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Group>>;
  const Links& links() const { return links_; }

  int64_t size(Dim dim) const { return group(dim).size(); }
  /// The number of parts that the dimensions with a role split something into.
  int64_t size(Role role) const;
  int64_t coordinate(Dim dim) const { return group(dim).rank(); }

 protected:
  /// The keys of all links between `n_ranks` along pp. With chunks, the last rank and the first are
  /// neighbours.
  static std::vector<Links::key_type> links_of(int64_t n_ranks, int64_t n_chunks_per_stage);
  static std::string name_of(const Links::key_type& link);

  int64_t n_chunks_per_stage_ = 1;
  Links links_;

 private:
  bool sequence_parallel_ = false;
  mutable std::shared_ptr<void> remembered_;
  mutable std::map<std::pair<int64_t, std::optional<int64_t>>, std::weak_ptr<const Mesh>> stages_;
};

/// Informs the other processes of the run that this one is about to end with an error: those that
/// wait for it end with an error that has this text, and a launcher ends with this exit code. For
/// programs; returns at once if there are no other processes.
REDCO_API void report_failure(const std::string& text, int exit_code = 1);

}  // namespace redco
