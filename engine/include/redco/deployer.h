#pragma once

#include <redco/checkpoint.h>
#include <redco/export.h>
#include <redco/mesh.h>
#include <redco/run_log.h>
#include <redco/schedule.h>

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace redco {

/// How the model, and what ZeRO splits, are spread over the processes.
struct ProcessLayout {
  int64_t n_model_shards = 1;
  int64_t n_context_shards = 1;
  int64_t n_expert_shards = 1;
  int64_t n_pipeline_stages = 1;
  int64_t n_chunks_per_stage = 1;
  int64_t zero = 0;
  int64_t zero_group = zero_group_of_all;
  bool sequence_parallel = false;
};

/// The parts of a layout that a plan chooses (choose_layout in redco/plan.h).
struct LayoutChoice {
  bool n_model_shards = false, zero = false, sequence_parallel = false;
  std::optional<int64_t> memory = std::nullopt;  ///< of a device, in bytes; none: what it has

  bool is_empty() const { return !n_model_shards && !zero && !sequence_parallel; }
};

struct DeployerOptions {
  int64_t seed = 0;
  /// The number of processes that share one copy of the parameters; must divide the number of
  /// processes.
  int64_t n_model_shards = 1;
  /// The number of processes, each with its own model shards, that share the positions of every
  /// example. n_model_shards * n_context_shards must divide the number of processes.
  int64_t n_context_shards = 1;
  /// The number of copies of the model among which the experts of mixtures are split; must divide
  /// the number of copies.
  int64_t n_expert_shards = 1;
  /// The number of stages that the blocks of the model are divided into; must divide the number of
  /// processes / (n_model_shards * n_context_shards * n_expert_shards).
  int64_t n_pipeline_stages = 1;
  /// The number of chunks of consecutive blocks that each stage has (interleaved 1F1B, arXiv
  /// 2104.04473): stages wait less, and send more.
  int64_t n_chunks_per_stage = 1;
  /// ZeRO stage (arXiv 1910.02054), the state split over the ranks that have different data: 1
  /// optimizer states, 2 also gradients, 3 also parameters.
  int64_t zero = 0;
  /// Parameters with fewer elements are not split: that would save no memory and add a piece to
  /// every collective.
  int64_t zero_min_size = 4096;
  /// The number of data-parallel processes that share ZeRO's state, or zero_group_of_host; each
  /// such group has a copy of it.
  int64_t zero_group = zero_group_of_all;
  /// Whether the model shards split activations along the sequence dimension between blocks.
  bool sequence_parallel = false;
  /// The choices that are made when the first training begins. Unless it is empty, the Deployer has
  /// no layout until set_layout: parameters cannot be laid out, and nothing may depend on the
  /// mesh's shape.
  LayoutChoice choice = {};
  /// The device type to which parameters and batches are moved; each process of a host takes the
  /// GPU with its local rank. none: they stay where they are, and several processes work on the
  /// CPU.
  std::optional<c10::DeviceType> device = std::nullopt;
  ProcessOptions processes = {};
  /// The timeout of a collective, in seconds.
  double collective_timeout = 600;
  /// Whether to show the log on the console. Only process 0 shows and logs.
  bool verbose = true;
  std::string workdir = {};  ///< the folder for logs and metrics; empty: none
  /// Whether the other processes also write their messages to the work folder, as log_RANK.txt.
  bool log_all_processes = false;
  bool run_tensorboard = false;           ///< also writes an event file to the work folder
  std::shared_ptr<Console> console = {};  ///< shows lines and progress; null: none
};

struct LrScheduleOptions {
  int64_t train_size = 0;  ///< examples per epoch
  int64_t per_device_batch_size = 0;
  int64_t n_epochs = 0;
  double learning_rate = 0;  ///< the peak
  /// Set at most one of the two; neither means no accumulation.
  std::optional<int64_t> global_batch_size = std::nullopt;
  std::optional<int64_t> accumulate_grad_batches = std::nullopt;
  std::string schedule_type = "linear";  ///< or "cosine"
  double warmup_ratio = 0;               ///< fraction of all steps; used if warmup_steps is not set
  std::optional<int64_t> warmup_steps = std::nullopt;
  double init_learning_rate = 0;
  double end_learning_rate = 0;
};

namespace io {
class WorkdirLock;
}

/// The processes and devices of a run, its random numbers and its log.
class REDCO_API Deployer {
 public:
  /// Connects to the other processes of the run, which construct their Deployers in the same order.
  /// Throws UsageError for options that do not fit the number of processes, Error if a process does
  /// not connect or another run uses the work folder.
  explicit Deployer(DeployerOptions options);

  /// A Deployer on a mesh that exists already. It connects nothing and writes no file: `workdir` is
  /// only a name.
  static std::shared_ptr<Deployer> on_mesh(DeployerOptions options, std::shared_ptr<Mesh> mesh);

  /// Without a layout, all processes as copies of the model.
  const std::shared_ptr<Mesh>& mesh() const { return mesh_; }

  /// The choices that are still to be made; empty if the Deployer has a layout.
  const LayoutChoice& choice() const { return options_.choice; }
  bool has_layout() const { return options_.choice.is_empty(); }
  /// Throws UsageError, which names `what`, without a layout.
  void require_layout(const std::string& what) const;
  /// Sets the layout of a Deployer that has none. All processes call it.
  void set_layout(const ProcessLayout& layout);
  /// The layout as far as it was given.
  ProcessLayout layout() const;

  /// The examples of a micro-batch: per device, and over the whole mesh, in which each
  /// data-parallel group has its own examples.
  std::pair<int64_t, int64_t> get_local_global_micro_batch_size(
      int64_t per_device_batch_size) const;

  /// The number of micro-batches per optimizer step. Throws Error unless it is a whole number.
  int64_t get_accumulate_grad_batches(int64_t global_batch_size,
                                      int64_t per_device_batch_size) const;

  /// Warm-up and decay over the whole run, counted in optimizer steps. An epoch has ceil(train_size
  /// / global batch size) of them, and the schedule reaches `end_learning_rate` at the end of the
  /// last one.
  Schedule get_lr_schedule_fn(const LrScheduleOptions& options) const;

  /// A new CounterGenerator at each call; that of the n-th call depends only on the seed and n.
  at::Generator gen_rng();
  /// The number of calls of gen_rng. Together with the seed it is the whole state to save.
  uint64_t rng_count() const { return rng_count_; }
  void set_rng_count(uint64_t count) { rng_count_ = count; }

  void log_info(const std::string& info, const std::string& title = "",
                std::optional<int64_t> step = std::nullopt);
  void log_metrics(const std::map<std::string, double>& metrics, int64_t step);
  /// Logs pixels, in the format of `encode_png`, to TensorBoard. If the tensor is sharded, all
  /// processes must call it.
  void log_image(const std::string& name, const at::Tensor& pixels, int64_t step);
  /// The same with the distribution of a tensor's values, or of each tensor in a tree, whose path
  /// follows the name. All processes must call it.
  void log_histogram(const std::string& name, const Tree& values, int64_t step);
  /// Logs settings of the run, numbers, strings and booleans by name, for TensorBoard.
  void log_hparams(const Tree::Dict& values);
  /// Writes a list of predictions to `outputs_DESC.json` in the work folder.
  void save_outputs(const Tree& outputs, const std::string& desc, int64_t step);

  /// Writes a checkpoint to any folder and waits for it. Adds the random state, the versions and
  /// the `config` to its info.
  void save_ckpt(const std::string& ckpt_dir, Checkpoint checkpoint,
                 SaveCheckpointOptions options = {});
  /// Loads a checkpoint as `load_checkpoint` does; its info has the folder as `ckpt_dir`. With
  /// `update_rng` the random state is restored.
  Checkpoint load_ckpt(const std::string& ckpt_dir, const LoadCheckpointOptions& options = {},
                       bool update_rng = false);
  /// Loads the checkpoint that workdir/ckpts/last_ckpt.txt names. If that file is missing, or the
  /// checkpoint is damaged, loads the newest intact one; damaged ones are renamed to NAME.damaged
  /// and logged. Returns none if there is no checkpoint at all. Throws Error if all are damaged.
  std::optional<Checkpoint> load_last_ckpt(const LoadCheckpointOptions& options = {},
                                           bool update_rng = true);
  CheckpointWriter& checkpoints() { return *checkpoints_; }
  /// Sets the configuration of the run, which is recorded in checkpoints.
  void set_config(Tree config) { config_ = std::move(config); }
  /// workdir/ckpts. Throws Error without a work folder.
  std::string ckpts_dir() const;

  /// Runs `body` on each process by itself, for different lengths of time if need be, and returns
  /// the results of all, by rank; tensors among them arrive on the CPU. `own` is a Deployer of this
  /// process alone, whose random numbers differ between processes, as any other is that is made
  /// inside. Whatever needs the other processes throws Error there. If `body` throws, its process
  /// throws that, and the others an Error that names the process. All processes call it.
  std::vector<Tree> alone(const std::function<Tree(const std::shared_ptr<Deployer>& own)>& body);

  /// A seed for a new Trainer; that of the n-th call depends only on the seed and n.
  uint64_t new_trainer_seed();

  /// The device to which parameters and batches are moved; none: they stay where they are.
  std::optional<c10::Device> device() const { return device_; }

  int64_t seed() const { return seed_; }
  int64_t zero() const { return zero_; }
  int64_t zero_min_size() const { return zero_min_size_; }
  RunLog& run_log() { return run_log_; }
  const std::string& workdir() const { return workdir_; }

 private:
  Deployer(const DeployerOptions& options, std::shared_ptr<Mesh> mesh, bool writes_files = true);

  DeployerOptions options_;
  std::shared_ptr<Mesh> mesh_;
  std::optional<c10::Device> device_;
  int64_t seed_;
  int64_t zero_;
  int64_t zero_min_size_;
  std::string workdir_;
  std::shared_ptr<io::WorkdirLock> workdir_lock_;  ///< of process 0
  RunLog run_log_;
  std::unique_ptr<CheckpointWriter> checkpoints_;
  Tree config_ = Tree::Dict{};
  uint64_t take(uint64_t& count) const;

  uint64_t rng_count_ = 0;
  uint64_t trainer_count_ = 0;
};

}  // namespace redco
