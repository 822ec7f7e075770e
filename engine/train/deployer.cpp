// The Deployer: processes, devices, random numbers and the log of a run.

#include <redco/deployer.h>
#include <redco/detail/notes.h>

#include "../checkpoint/workdir_lock.h"
#include "../mesh/alone.h"
#include "../mesh/run/agreement.h"
#include "random.h"

#include <redco/detail/read_whole.h>
#include <redco/error.h>
#include <redco/random.h>
#include <redco/sharding.h>

namespace redco {

using namespace io;
using namespace mesh;
using namespace train;

namespace {

void check_positive(const char* name, int64_t value) {
  require(value > 0, name, " = ", value, " must be positive");
}

std::shared_ptr<Mesh> make_mesh(const DeployerOptions& options) {
  require(options.collective_timeout > 0 && options.collective_timeout <= 1e6,
          "Deployer: collective_timeout = ", options.collective_timeout,
          " must be a positive number of seconds");
  Processes processes = find_processes(options.processes);
  bool has_layout = options.choice.is_empty();
  if (Alone::is_on()) {
    Processes single;
    single.local_rank = processes.local_rank;
    processes = single;
  }
  return Mesh::make(
      {.processes = processes,
       .n_model_shards = has_layout ? options.n_model_shards : 1,
       .n_context_shards = has_layout ? options.n_context_shards : 1,
       .n_expert_shards = has_layout ? options.n_expert_shards : 1,
       .n_pipeline_stages = has_layout ? options.n_pipeline_stages : 1,
       .n_chunks_per_stage = has_layout ? options.n_chunks_per_stage : 1,
       .zero_group = has_layout && options.zero > 0 ? options.zero_group : zero_group_of_all,
       .device_type = options.device.value_or(c10::kCPU),
       .timeout = std::chrono::milliseconds(int64_t(options.collective_timeout * 1000))});
}

// Process 0 takes the lock for all; if it cannot, all fail.
std::shared_ptr<WorkdirLock> lock_workdir(const std::string& workdir, Mesh& mesh) {
  const Processes& processes = mesh.processes();
  std::string key = processes.size > 1 ? "workdir/" + mesh.notes().next_exchange() : "";
  if (processes.rank != 0) {
    std::string error = mesh.notes().await(key, "locking the work folder");
    require(error.empty(), error);
    return nullptr;
  }
  std::shared_ptr<WorkdirLock> lock;
  std::exception_ptr failure;
  try {
    if (!workdir.empty()) lock = WorkdirLock::take(workdir, processes);
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  if (processes.size > 1) mesh.notes().leave(key, failure ? text_of(failure) : "");
  if (failure) std::rethrow_exception(failure);
  return lock;
}

RunLog make_run_log(const DeployerOptions& options, const Processes& processes, bool writes_files) {
  require(!options.run_tensorboard || !options.workdir.empty(),
          "Deployer: run_tensorboard = true writes to the work folder: give a workdir");
  return RunLog({.workdir = writes_files ? options.workdir : "",
                 .verbose = options.verbose,
                 .console = options.console,
                 .process_id = processes.rank,
                 .n_processes = processes.size,
                 .log_all_processes = options.log_all_processes,
                 .run_tensorboard = options.run_tensorboard});
}

}  // namespace

Deployer::Deployer(DeployerOptions options) : Deployer(options, make_mesh(options)) {}

std::shared_ptr<Deployer> Deployer::on_mesh(DeployerOptions options, std::shared_ptr<Mesh> mesh) {
  options.run_tensorboard = false;
  return std::shared_ptr<Deployer>(new Deployer(options, std::move(mesh), /*writes_files=*/false));
}

Deployer::Deployer(const DeployerOptions& options, std::shared_ptr<Mesh> mesh, bool writes_files)
    : options_(options),
      mesh_(std::move(mesh)),
      device_(options.device ? std::optional(mesh_->device()) : std::nullopt),
      seed_(options.seed),
      zero_(options.zero),
      zero_min_size_(options.zero_min_size),
      workdir_(options.workdir),
      workdir_lock_(writes_files ? lock_workdir(workdir_, *mesh_) : nullptr),
      run_log_(make_run_log(options, mesh_->processes(), writes_files)),
      checkpoints_(std::make_unique<CheckpointWriter>(mesh_)) {
  require(zero_ >= 0 && zero_ <= 3, "Deployer: zero = ", zero_, " must be 0, 1, 2 or 3");
  mesh_->set_sequence_parallel(options.sequence_parallel);
  const Processes& processes = mesh_->processes();
  if (processes.size > 1 && writes_files)
    log_info(std::to_string(processes.size) + " processes connected at " + processes.store_address +
             ":" + std::to_string(processes.store_port) + " (by " + processes.source + ")");
  if (workdir_lock_ && !workdir_lock_->is_taken())
    log_info(
        "The work folder is not locked: its file system has no locks, or .lock can't be written "
        "there. Don't start another run in it");
}

void Deployer::require_layout(const std::string& what) const {
  if (has_layout()) return;
  const LayoutChoice& choice = options_.choice;
  const char* name = choice.n_model_shards ? "n_model_shards"
                     : choice.zero         ? "zero"
                                           : "sequence_parallel";
  throw UsageError(what + ": the layout is not known yet: the Deployer has " + name +
                   " = \"auto\", which the first fit, train or train_step decides");
}

void Deployer::set_layout(const ProcessLayout& layout) {
  require(!has_layout(), "Deployer: the layout is set already");
  DeployerOptions options = options_;
  options.choice = {};
  options.n_model_shards = layout.n_model_shards;
  options.n_context_shards = layout.n_context_shards;
  options.n_expert_shards = layout.n_expert_shards;
  options.n_pipeline_stages = layout.n_pipeline_stages;
  options.n_chunks_per_stage = layout.n_chunks_per_stage;
  options.zero = layout.zero;
  options.zero_group = layout.zero_group;
  options.sequence_parallel = layout.sequence_parallel;
  std::shared_ptr<Mesh> mesh = make_mesh(options);
  checkpoints_ = std::make_unique<CheckpointWriter>(mesh);
  mesh_ = std::move(mesh);
  mesh_->set_sequence_parallel(options.sequence_parallel);
  zero_ = options.zero;
  options_ = std::move(options);
}

ProcessLayout Deployer::layout() const {
  return {.n_model_shards = options_.n_model_shards,
          .n_context_shards = options_.n_context_shards,
          .n_expert_shards = options_.n_expert_shards,
          .n_pipeline_stages = options_.n_pipeline_stages,
          .n_chunks_per_stage = options_.n_chunks_per_stage,
          .zero = options_.zero,
          .zero_group = options_.zero_group,
          .sequence_parallel = options_.sequence_parallel};
}

std::pair<int64_t, int64_t> Deployer::get_local_global_micro_batch_size(
    int64_t per_device_batch_size) const {
  check_positive("per_device_batch_size", per_device_batch_size);
  require_layout("the number of examples of a micro-batch");
  return {per_device_batch_size, per_device_batch_size * mesh_->size(Mesh::batch)};
}

int64_t Deployer::get_accumulate_grad_batches(int64_t global_batch_size,
                                              int64_t per_device_batch_size) const {
  check_positive("global_batch_size", global_batch_size);
  int64_t micro = get_local_global_micro_batch_size(per_device_batch_size).second;
  int64_t n_copies = mesh_->size(Mesh::batch);
  require(
      global_batch_size % micro == 0, "global_batch_size = ", global_batch_size,
      " must be a multiple of the micro-batch of all devices, ", micro,
      " (per_device_batch_size = ", per_device_batch_size, " on ", n_copies,
      n_copies == 1 ? " device" : " copies of the model", "); ",
      global_batch_size < micro ? "the least is " : "the nearest are ",
      global_batch_size < micro ? "" : std::to_string(global_batch_size / micro * micro) + " and ",
      (global_batch_size / micro + 1) * micro);
  return global_batch_size / micro;
}

Schedule Deployer::get_lr_schedule_fn(const LrScheduleOptions& options) const {
  check_positive("get_lr_schedule_fn: train_size", options.train_size);
  check_positive("get_lr_schedule_fn: n_epochs", options.n_epochs);
  require(options.learning_rate > 0, "get_lr_schedule_fn: learning_rate = ", options.learning_rate,
          " must be positive");
  // Without a layout, counts the examples of a step as if each process held a copy of the model.
  int64_t micro = has_layout()
                      ? get_local_global_micro_batch_size(options.per_device_batch_size).second
                      : options.global_batch_size.value_or(options.per_device_batch_size *
                                                           mesh_->world().size());
  int64_t accumulate = options.accumulate_grad_batches.value_or(1);
  check_positive("get_lr_schedule_fn: accumulate_grad_batches", accumulate);
  if (options.global_batch_size && has_layout()) {
    int64_t derived =
        get_accumulate_grad_batches(*options.global_batch_size, options.per_device_batch_size);
    require(!options.accumulate_grad_batches || accumulate == derived,
            "get_lr_schedule_fn: global_batch_size = ", *options.global_batch_size, " means ",
            derived, " micro-batches of ", micro, ", accumulate_grad_batches says ", accumulate,
            ": give one of them");
    accumulate = derived;
  }
  int64_t global = micro * accumulate;
  int64_t total = options.n_epochs * ((options.train_size + global - 1) / global);
  require(options.warmup_ratio >= 0 && options.warmup_ratio <= 1,
          "get_lr_schedule_fn: warmup_ratio = ", options.warmup_ratio, " must be between 0 and 1");
  int64_t warmup = options.warmup_steps.value_or(int64_t(double(total) * options.warmup_ratio));

  using Make = Schedule (*)(double, double, double, int64_t, int64_t);
  static const std::map<std::string, Make> types = {{"linear", linear_schedule},
                                                    {"cosine", cosine_schedule}};
  auto type = types.find(options.schedule_type);
  require(type != types.end(), "get_lr_schedule_fn: schedule_type = \"", options.schedule_type,
          "\" is not known; there are \"linear\" and \"cosine\"");
  return type->second(options.init_learning_rate, options.learning_rate, options.end_learning_rate,
                      warmup, total);
}

// Returns the next number of a stream. After a failed turn the counts of processes may differ; the
// shift by the number of reconnects makes them equal again.
uint64_t Deployer::take(uint64_t& count) const {
  if (mesh_->world().size() > 1)
    Alone::refuse([] { return "random numbers that all processes draw alike"; });
  count = std::max(count, uint64_t(mesh_->reconnects()) << 32);
  return count++;
}

at::Generator Deployer::gen_rng() {
  return make_rng(derive_seed(uint64_t(seed_), {user_stream, take(rng_count_)}));
}

void Deployer::log_info(const std::string& info, const std::string& title,
                        std::optional<int64_t> step) {
  run_log_.info(info, title, step);
}

void Deployer::log_metrics(const std::map<std::string, double>& metrics, int64_t step) {
  run_log_.metrics(step, metrics);
}

void Deployer::log_image(const std::string& name, const at::Tensor& pixels, int64_t step) {
  run_log_.image(step, name, full_to_read(pixels));
}

void Deployer::log_histogram(const std::string& name, const Tree& values, int64_t step) {
  for (const auto& [path, tensor] : named_tensors(values))
    run_log_.histogram(step, path.empty() ? name : name + "/" + path, full_to_read(tensor));
}

void Deployer::log_hparams(const Tree::Dict& values) { run_log_.settings(values); }

void Deployer::save_outputs(const Tree& outputs, const std::string& desc, int64_t step) {
  run_log_.outputs(step, desc, outputs);
}

uint64_t Deployer::new_trainer_seed() {
  return derive_seed(uint64_t(seed_), {trainer_stream, take(trainer_count_)});
}

}  // namespace redco
