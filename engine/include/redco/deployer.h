#pragma once

#include <redco/checkpoint.h>
#include <redco/export.h>
#include <redco/mesh.h>
#include <redco/run_log.h>
#include <redco/schedule.h>

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace redco {

struct DeployerOptions {
  int64_t seed = 0;
  /// Processes that share one copy of the parameters; it divides their number.
  int64_t n_model_shards = 1;
  /// What the data-parallel ranks share instead of each holding all of it: 1 optimizer states, 2
  /// and gradients, 3 and parameters (arXiv 1910.02054).
  int64_t zero = 0;
  /// Parameters of fewer values stay whole: splitting those saves nothing and costs a piece of
  /// every collective.
  int64_t zero_min_size = 4096;
  /// Whether the model shards split activations along their sequence between the blocks.
  bool sequence_parallel = false;
  /// Where parameters and batches are brought; of several GPUs each process of a host takes the one
  /// of its number. none: they stay where they are, and several processes work on the CPU.
  std::optional<c10::DeviceType> device = std::nullopt;
  ProcessOptions processes = {};
  /// How long a collective may wait for the other processes, in seconds.
  double collective_timeout = 600;
  /// Of several processes only number 0 shows and logs.
  bool verbose = true;
  std::string workdir = {};  ///< logs and metrics go here; empty: nowhere
  /// Whether the other processes write their messages to the work folder too, as log_RANK.txt.
  bool log_all_processes = false;
  bool run_tensorboard = false;           ///< writes an event file to the work folder too
  std::shared_ptr<Console> console = {};  ///< where lines and progress are shown; null: nowhere
};

struct LrScheduleOptions {
  int64_t train_size = 0;  ///< examples of an epoch
  int64_t per_device_batch_size = 0;
  int64_t n_epochs = 0;
  double learning_rate = 0;  ///< the peak
  /// One of the two, or neither (no accumulation).
  std::optional<int64_t> global_batch_size = std::nullopt;
  std::optional<int64_t> accumulate_grad_batches = std::nullopt;
  std::string schedule_type = "linear";  ///< or "cosine"
  double warmup_ratio = 0;               ///< of all steps; where warmup_steps is not given
  std::optional<int64_t> warmup_steps = std::nullopt;
  double init_learning_rate = 0;
  double end_learning_rate = 0;
};

class WorkdirLock;

/// The processes and devices of a run, its random numbers and its log.
class REDCO_API Deployer {
 public:
  /// Meets the other processes of the run, which make their Deployers in the same order. Throws
  /// UsageError for what does not fit their number, Error when one does not come or another run
  /// uses the work folder.
  explicit Deployer(DeployerOptions options);

  const std::shared_ptr<Mesh>& mesh() const { return mesh_; }

  /// Examples of a micro-batch: those of one device, and those of the whole mesh, in which each
  /// data-parallel group has its own.
  std::pair<int64_t, int64_t> get_local_global_micro_batch_size(
      int64_t per_device_batch_size) const;

  /// Micro-batches of one optimizer step. Throws Error unless it is a whole number.
  int64_t get_accumulate_grad_batches(int64_t global_batch_size,
                                      int64_t per_device_batch_size) const;

  /// Warm-up and decay over the whole run, counted in optimizer steps, of which an epoch has
  /// ceil(train_size / global batch size): it reaches `end_learning_rate` with the last one.
  Schedule get_lr_schedule_fn(const LrScheduleOptions& options) const;

  /// A CounterGenerator of its own, different at each call; the n-th call of a run depends on the
  /// seed and n alone.
  at::Generator gen_rng();
  /// How many calls of gen_rng there were: with the seed, all there is to save of its state.
  uint64_t rng_count() const { return rng_count_; }
  void set_rng_count(uint64_t count) { rng_count_ = count; }

  void log_info(const std::string& info, const std::string& title = "",
                std::optional<int64_t> step = std::nullopt);
  void log_metrics(const std::map<std::string, double>& metrics, int64_t step);
  /// Pixels as `encode_png` takes them, for TensorBoard. Of a sharded tensor all processes call it.
  void log_image(const std::string& name, const at::Tensor& pixels, int64_t step);
  /// Writes a list of predictions to `outputs_DESC.json` in the work folder.
  void save_outputs(const Tree& outputs, const std::string& desc, int64_t step);

  /// Writes a checkpoint to any folder, and waits for it. The info gets the state of the random
  /// numbers, the versions and the `config` beside what it has.
  void save_ckpt(const std::string& ckpt_dir, Checkpoint checkpoint,
                 SaveCheckpointOptions options = {});
  /// What is there, as `load_checkpoint`; its info names the folder as `ckpt_dir`. With
  /// `update_rng` random numbers go on where they were.
  Checkpoint load_ckpt(const std::string& ckpt_dir, const LoadCheckpointOptions& options = {},
                       bool update_rng = false);
  /// The one that workdir/ckpts/last_ckpt.txt names. If that file is missing, or this checkpoint is
  /// damaged, the newest whole one; damaged ones are renamed to NAME.damaged, and the log says so.
  /// None if there is no checkpoint at all. Throws Error if there are only damaged ones.
  std::optional<Checkpoint> load_last_ckpt(const LoadCheckpointOptions& options = {},
                                           bool update_rng = true);
  CheckpointWriter& checkpoints() { return checkpoints_; }
  /// What the script was told, for the record: it is written into checkpoints.
  void set_config(Tree config) { config_ = std::move(config); }
  /// workdir/ckpts. Throws Error without a work folder.
  std::string ckpts_dir() const;

  /// A seed for one more Trainer; the n-th call depends on the seed and n alone.
  uint64_t new_trainer_seed();

  /// Where parameters and batches are brought; nothing: they stay where they are.
  std::optional<c10::Device> device() const { return device_; }

  int64_t zero() const { return zero_; }
  int64_t zero_min_size() const { return zero_min_size_; }
  RunLog& run_log() { return run_log_; }
  const std::string& workdir() const { return workdir_; }

 private:
  std::shared_ptr<Mesh> mesh_;
  std::optional<c10::Device> device_;
  int64_t seed_;
  int64_t zero_;
  int64_t zero_min_size_;
  std::string workdir_;
  std::shared_ptr<WorkdirLock> workdir_lock_;  ///< of process 0
  RunLog run_log_;
  CheckpointWriter checkpoints_;
  Tree config_ = Tree::Dict{};
  uint64_t take(uint64_t& count) const;

  uint64_t rng_count_ = 0;
  uint64_t trainer_count_ = 0;
};

}  // namespace redco
