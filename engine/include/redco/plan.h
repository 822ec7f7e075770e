#pragma once

#include <redco/cluster.h>
#include <redco/dataset.h>
#include <redco/deployer.h>
#include <redco/export.h>
#include <redco/group.h>
#include <redco/recompute.h>
#include <redco/trainer.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace c10 {
class OperatorHandle;
}

namespace redco {

/// Which of the layouts that fit is the best.
enum class PlanObjective : uint8_t {
  time,    ///< the fastest
  memory,  ///< the one that needs least
  cost     ///< the cheapest; needs the prices of the cluster
};

struct PlanOptions {
  int64_t per_device_batch_size = 1;  ///< of the layout that is asked for
  /// Examples of an optimizer step, kept the same in all layouts. none: those of the layout that is
  /// asked for, on all devices.
  std::optional<int64_t> global_batch_size = std::nullopt;
  // The requested layout.
  int64_t n_model_shards = 1;
  int64_t n_context_shards = 1;    ///< of all layouts
  int64_t n_expert_shards = 1;     ///< the same
  int64_t n_pipeline_stages = 1;   ///< the same
  int64_t n_chunks_per_stage = 1;  ///< the same
  int64_t zero = 0;
  int64_t zero_group = zero_group_of_all;
  bool sequence_parallel = false;
  bool has_asked = true;  ///< whether that layout is planned even if it does not fit
  // The options in which the other layouts may differ.
  bool tries_model_shards = true;
  bool tries_zero = true;
  bool tries_sequence_parallel = true;
  bool tries_recompute = true;  ///< where a step does not fit without, or the objective is memory
  bool tries_dtype = false;     ///< compute_dtype = bfloat16, too, if the script's is float32
  PlanObjective objective = PlanObjective::time;

  std::optional<int64_t> max_model_shards = std::nullopt;  ///< none: the devices of a host
  double margin = 0.06;        ///< the part of a device's memory that must stay free
  double timeout = 60;         ///< seconds after which no further layout is tried
  int64_t n_layouts = 8;       ///< the most to return, besides the one asked for and the least
  bool has_timelines = false;  ///< whether layouts have a `timeline`
};

/// A tensor that exists when a step needs the most memory.
struct PlannedTensor {
  int64_t bytes = 0;
  std::string kind = {};           ///< "parameters", "gradients", "activations", ...
  std::string operator_name = {};  ///< empty outside of operators
  std::string line = {};           ///< of the script; empty if none
  bool is_backward = false;
};

/// The memory of a device during a step.
struct MemoryTimeline {
  /// Bytes by kind, with the names of PlannedLayout::memory.
  using Moment = std::map<std::string, int64_t>;
  double seconds = 0;                ///< of each moment
  std::vector<Moment> moments = {};  ///< the memory at the peak of that part of the step
};

/// A layout of a training step over devices, and what one device needs for it: the first one, or
/// the first one of the stage that needs the most memory. Bytes, and bytes of one step.
struct PlannedLayout {
  int64_t n_copies = 1;  ///< of the model: the data-parallel size
  int64_t n_model_shards = 1;
  int64_t n_context_shards = 1;
  int64_t n_expert_shards = 1;  ///< the copies that share the experts of mixtures
  int64_t n_pipeline_stages = 1;
  int64_t n_chunks_per_stage = 1;
  int64_t stage = 0;  ///< of the device that the numbers are of
  int64_t zero = 0;
  int64_t zero_group = 1;  ///< the copies that share ZeRO's state: all, or those of a host
  bool sequence_parallel = false;
  Recompute recompute = Recompute::none;
  c10::ScalarType compute_dtype = c10::ScalarType::Float;
  int64_t per_device_batch_size = 1;
  int64_t n_accumulated = 1;
  bool is_asked = false;  ///< the layout that the script asks for
  /// No planned layout needs less memory; or none does without recomputation.
  bool is_least = false;

  bool is_planned = false;  ///< whether a step was run: else only `states` and `why` are known
  bool fits = false;
  std::string why = {};  ///< why it does not fit, or was not planned
  int64_t states = 0;    ///< the least that parameters, gradients and optimizer states need

  std::map<std::string, int64_t> memory = {};  ///< when most is alive, by kind
  int64_t allocated = 0;                       ///< their sum
  int64_t fragmentation = 0;                   ///< of the allocator
  int64_t reserved = 0;                        ///< of the driver, libraries and groups
  int64_t total = 0;                           ///< allocated + fragmentation + reserved
  int64_t host_memory = 0;                     ///< of the host, for each device: offload_optimizer
  std::vector<PlannedTensor> largest = {};     ///< the ten largest of those
  MemoryTimeline timeline = {};                ///< if it was asked for

  std::map<std::string, Group::Counters> collectives = {};  ///< by group
  double seconds = 0;                                       ///< of a step
  double exposed_seconds = 0;                  ///< of these, in which the device only communicates
  std::map<std::string, double> exposed = {};  ///< the same by group
  double starting_seconds = 0;                 ///< of these, in which a GPU waits for its host
  double mfu = 0;                              ///< model FLOPs utilization
  std::optional<double> price = std::nullopt;  ///< of a step; none if the cluster has no prices
  std::vector<std::string> notes = {};
};

/// Reads "time", "memory" or "cost". Throws UsageError for other text.
REDCO_API PlanObjective parse_objective(const std::string& name);

/// Throws UsageError if layouts are to be compared by cost and the cluster has no prices.
REDCO_API void check_prices(PlanObjective objective, const ClusterSpec& cluster);

/// Sets what else layouts may have than the script, from "recompute", "dtype", both with a comma,
/// or "none". Throws UsageError for other text.
REDCO_API void parse_allowed(const std::string& names, PlanOptions& options);

struct StepPlan {
  std::vector<PlannedLayout> layouts;  ///< the best first
  int64_t n_parameters = 0;
  int64_t global_batch_size = 0;
  int64_t memory = 0;    ///< of a device
  int64_t n_traced = 0;  ///< how many steps were planned: layouts, with their batches
  // If no layout fits:
  std::string why = {};       ///< the needs of the best one
  int64_t states = 0;         ///< bytes of all parameters, gradients and optimizer states
  int64_t least_devices = 0;  ///< that could hold these, and nothing else
  std::vector<std::string> notes;
};

/// Plans how the step of a Trainer with these options runs on a cluster: runs it for each possible
/// layout on tensors without values, and reports its memory, its collectives and its time. Needs
/// none of the devices, makes no process and writes nothing. The parameters are not read; they may
/// be sharded or have no values. Throws what the loss function throws, and Error, which names the
/// operator and the script line, for a step that depends on values. Throws Error, which names the
/// nearest possible numbers, for a batch that no layout divides.
REDCO_API StepPlan plan_step(const TrainerOptions& trainer, const Dataset& examples,
                             const ClusterSpec& cluster, const PlanOptions& options = {});

/// Chooses the layout of a Trainer's Deployer that has none (DeployerOptions::choice): the fastest
/// one that fits, by a plan that process 0 makes and gives to all. `trainer` has the options of the
/// Trainer, with its parameters. Returns the layout; training must use its per_device_batch_size
/// and n_accumulated. All processes call it. Throws Error, which says what is least needed, if none
/// fits.
REDCO_API PlannedLayout choose_layout(const TrainerOptions& trainer, const Dataset& examples,
                                      const PlanOptions& options);

/// The bytes of the tensors of the step that this thread plans; none if it plans none, or something
/// runs that is no part of the step, such as the search for a layout.
REDCO_API std::optional<int64_t> planned_bytes();

/// The operator to call in the place of `handle`: `handle` itself, unless this thread plans a step
/// on GPUs, where LibTorch runs other parts of it than on the CPU. It has the same arguments.
REDCO_API const c10::OperatorHandle& planned_form(const c10::OperatorHandle& handle);

/// While it exists, this thread's scripts are only planned: floating-point tensors of 1 MB or more
/// that they make (ScriptCall) have no values, and operators on these compute shapes.
class REDCO_API PlanMode {
 public:
  PlanMode();
  ~PlanMode();
  PlanMode(const PlanMode&) = delete;
  PlanMode& operator=(const PlanMode&) = delete;

  static bool is_on();  ///< on this thread

  /// While it exists, the script calls an operator, or makes a parameter. Tensors that the engine
  /// makes in other ways, such as data from files, have their values.
  class REDCO_API ScriptCall {
   public:
    ScriptCall();
    ~ScriptCall();
    ScriptCall(const ScriptCall&) = delete;
    ScriptCall& operator=(const ScriptCall&) = delete;

   private:
    bool outer_;
  };

  /// A Deployer that connects nothing and writes nothing. Its mesh has one device, whatever layout
  /// the options ask for.
  std::shared_ptr<Deployer> make_deployer(DeployerOptions options);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace redco
