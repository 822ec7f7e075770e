#pragma once

#include <redco/export.h>
#include <redco/group.h>

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace redco {

class Notes;

/// What a caller says of the processes of a run; what it leaves out is found in the environment.
struct ProcessOptions {
  std::optional<int64_t> n_processes = std::nullopt;
  std::optional<int64_t> process_id = std::nullopt;
  std::optional<std::string> host0_address = std::nullopt;
  std::optional<int64_t> host0_port = std::nullopt;
};

/// Where this process stands among the processes of a run, one for each device.
struct Processes {
  int64_t rank = 0;
  int64_t size = 1;
  int64_t local_rank = 0;  ///< among those of this host: the device it takes
  int64_t local_size = 1;
  std::string store_address = {};  ///< where the store listens; empty: one process needs none
  int64_t store_port = 0;
  bool hosts_store = false;  ///< whether this process is the one that opens the store
  /// Whether a store of torchrun's is at that address, at which process 0 tells where its own is.
  bool is_announced = false;
  std::string secret = {};             ///< of the run; empty: the user's (redco/run_secret.h)
  int64_t attempt = 0;                 ///< how often the run was started again
  std::string run = {};                ///< differs between runs that may meet at one store
  bool is_worker = false;              ///< whether torchrun, or redco-lua's launcher, started it
  std::string source = "one process";  ///< who said so, for the log
};

/// Where this is set beside torchrun's variables, MASTER_ADDR and MASTER_PORT tell where the run's
/// store is (redco/run_store.h).
constexpr const char* launcher_store_variable = "REDCO_LAUNCHER_STORE";

/// By the variables of torchrun (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
/// MASTER_PORT), of Open MPI's mpirun, of a Slurm step, of an mpirun of MPICH's kind; else by the
/// options; else by REDCO_N_PROCESSES, REDCO_PROCESS_ID, REDCO_HOST0_ADDRESS and REDCO_HOST0_PORT,
/// which mean what the options mean; else one process. Throws UsageError for what does not fit
/// together, and where two of these contradict each other.
REDCO_API Processes find_processes(const ProcessOptions& options = {});

/// "gloo": collectives of tensors on GPUs are run on the CPUs by Gloo, which copies them there and
/// back. That is slower than NCCL, but several processes can share a GPU. "nccl", the default.
constexpr const char* collectives_variable = "REDCO_COLLECTIVES";

struct MeshOptions {
  Processes processes = {};
  int64_t n_model_shards = 1;
  c10::DeviceType device_type = c10::kCPU;
  /// How long a collective may take.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

/// The processes of a run as a grid of two dimensions: dp, over which the batch is split, and mp,
/// over which parameters are. Neighbouring ranks are on one row of mp.
class REDCO_API Mesh {
 public:
  enum Dim : uint8_t { dp = 0, mp = 1, n_dims = 2 };

  /// Connects the processes; returns when all are there. Throws Error when one does not come, and
  /// UsageError when n_model_shards does not divide their number.
  static std::shared_ptr<Mesh> make(const MeshOptions& options);

  virtual ~Mesh() = default;
  virtual const Processes& processes() const = 0;
  virtual c10::Device device() const = 0;
  virtual Group& group(Dim dim) const = 0;
  virtual Group& world() const = 0;
  /// Throws Error where the mesh is not one of processes.
  virtual Notes& notes() const;
  /// How often its processes have connected anew, after turns that failed (redco/turns.h). What
  /// was under way between them, or recorded of their common order, then holds no more.
  virtual int64_t reconnects() const { return 0; }

  /// Whether activations [batch, sequence, features] that are sums over mp are split along their
  /// sequence instead of made whole (arXiv 2205.05198).
  bool sequence_parallel() const { return sequence_parallel_; }
  void set_sequence_parallel(bool is_on) { sequence_parallel_ = is_on; }

  int64_t size(Dim dim) const { return group(dim).size(); }
  int64_t coordinate(Dim dim) const { return group(dim).rank(); }

 private:
  bool sequence_parallel_ = false;
};

/// Tells the other processes of this one's run that it is about to end with an error: those that
/// wait for it end with an error that has this text, and a launcher with this exit code. For
/// programs; quick where there are no others.
REDCO_API void report_failure(const std::string& text, int exit_code = 1);

}  // namespace redco
