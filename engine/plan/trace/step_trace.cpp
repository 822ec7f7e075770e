// Runs training steps without values, and traces one.

#include "step_trace.h"

#include "../../core/host_memory.h"
#include "../../mesh/spmd_log.h"

#include <redco/detail/planned_device.h>
#include <redco/detail/recomputing.h>
#include <redco/error.h>
#include <redco/moves.h>
#include <redco/quantized.h>
#include <redco/sharding.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace redco::plan {

namespace {

constexpr auto meta = c10::DeviceType::Meta;

}  // namespace

Tree whole_on_meta(const Tree& tensors, const std::shared_ptr<Mesh>& mesh) {
  at::NoGradGuard no_grad;
  std::map<const void*, at::Tensor> made;
  return map_tensors(tensors, [&](const std::string&, const at::Tensor& given) {
    at::Tensor& tensor = made[given.unsafeGetTensorImpl()];
    if (!tensor.defined())
      tensor =
          from_local(at::empty(given.sizes(), at::TensorOptions(given.scalar_type()).device(meta)),
                     mesh, {}, given.sizes());
    return tensor;
  });
}

namespace {

// Returns how many examples of a batch of `n` to collate: those of one device. Collates all of a
// small batch, since a batch may be as long as its longest example.
int64_t n_collated_of(int64_t n, int64_t per_device) {
  constexpr int64_t small = 64;
  return n <= small ? n : std::min(n, std::max<int64_t>(2, per_device));
}

// Pauses the tracer: the script's work to make batches is not part of the step.
Tree collate(const Dataset& examples, std::vector<int64_t> indices) {
  Tracer::Pause pause(*Tracer::of_thread());
  for (int64_t& index : indices) index %= examples.size;
  return examples.collate(indices);
}

// Returns the examples of a step, with batches that have no values.
Dataset imagined_examples(const Dataset& examples, int64_t size, int64_t per_device,
                          const std::shared_ptr<Mesh>& mesh) {
  Dataset imagined;
  imagined.size = size;
  imagined.context_dims = examples.context_dims;
  imagined.collate = [=](const std::vector<int64_t>& indices) -> Tree {
    auto n = int64_t(indices.size()), n_collated = n_collated_of(n, per_device);
    Tree batch = collate(examples, {indices.begin(), indices.begin() + n_collated});
    at::NoGradGuard no_grad;
    return map_tensors(batch, [&](const std::string&, const at::Tensor& tensor) {
      std::vector<int64_t> sizes = tensor.sizes().vec();
      if (!sizes.empty() && sizes[0] == n_collated) sizes[0] = n;
      at::Tensor local = at::empty(sizes, at::TensorOptions(tensor.scalar_type()).device(meta));
      return from_local(local, mesh, {}, sizes);
    });
  };
  return imagined;
}

// Returns the examples from which the Trainer decides the layout.
Dataset layout_examples(const Dataset& examples, int64_t n_micro, int64_t per_device) {
  int64_t size = std::min(examples.size, n_collated_of(n_micro, per_device));
  return {size,
          [examples](const std::vector<int64_t>& indices) { return collate(examples, indices); }};
}

Collectives counted(const Mesh& mesh) {
  Collectives all;
  for (Mesh::Dim dim : Mesh::dims) all[mesh.group(dim).name()] = mesh.group(dim).counters();
  all[mesh.world().name()] = mesh.world().counters();
  for (const auto& [stages, link] : mesh.links()) all[link->name()] = link->counters();
  return all;
}

Collectives difference(Collectives now, const Collectives& before) {
  add(now, before, -1);
  return now;
}

// Counts the bytes that a micro-batch sends, by the first forward passes and the first backward
// passes of a step: those of one micro-batch or, with chunks, of the first group.
class FirstPasses {
 public:
  FirstPasses(const Mesh& mesh, int64_t n_accumulated)
      : mesh_(mesh),
        n_batches_(mesh.n_chunks_per_stage() == 1
                       ? 1
                       : n_accumulated / std::max<int64_t>(1, n_accumulated / mesh.size(stages))) {}
  void begin_step() {
    sent_.clear();
    n_counted_ = {};
  }
  void begin(bool is_backward) {
    if (is_counted(is_backward)) before_ = counted(mesh_);
  }
  void end(bool is_backward) {
    if (is_counted(is_backward)) add(sent_, difference(counted(mesh_), before_), 1);
    ++n_counted_[is_backward];
  }
  Collectives of_micro_batch() const {
    Collectives each = sent_;
    for (auto& [name, counters] : each)
      for (auto& counter : counters) counter.count /= n_batches_, counter.bytes /= n_batches_;
    return each;
  }

 private:
  static constexpr Mesh::Dim stages = Mesh::dim_of(Mesh::pipeline);
  bool is_counted(bool is_backward) const {
    return n_counted_[is_backward] < n_batches_ * mesh_.n_chunks_per_stage();
  }

  const Mesh& mesh_;
  int64_t n_batches_;
  Collectives before_, sent_;
  std::array<int64_t, 2> n_counted_{};
};

// Follows the phases that TrainStep marks: forward and backward passes, the sums of gradients over
// the stages, and the update.
class Phases {
 public:
  Phases(FirstPasses& passes, std::function<void()> after_backward)
      : passes_(passes), after_backward_(std::move(after_backward)) {
    outer_ = std::exchange(current, this);
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(on_begin, on_end).scopes({at::RecordScope::USER_SCOPE}));
  }
  ~Phases() {
    at::removeCallback(handle_);
    current = outer_;
  }
  Phases(const Phases&) = delete;
  Phases& operator=(const Phases&) = delete;

 private:
  static bool is(const at::RecordFunction& call, const char* name) {
    return std::strcmp(call.name(), name) == 0;
  }
  static std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& call) {
    Tracer* tracer = Tracer::current();
    if (!tracer) return nullptr;
    if (is(call, "update")) tracer->set_updating(true);
    if (is(call, "forward") || is(call, "backward")) {
      tracer->begin_pass(is(call, "backward"));
      current->passes_.begin(is(call, "backward"));
    }
    return nullptr;
  }
  static void on_end(const at::RecordFunction& call, at::ObserverContext*) {
    if (is(call, "backward") || is(call, "join stages")) current->after_backward_();
    Tracer* tracer = Tracer::current();
    if (!tracer) return;
    if (is(call, "update")) tracer->set_updating(false);
    if (is(call, "forward") || is(call, "backward")) {
      tracer->end_pass();
      current->passes_.end(is(call, "backward"));
    }
  }

  static thread_local Phases* current;
  Phases* outer_;
  FirstPasses& passes_;
  std::function<void()> after_backward_;
  at::CallbackHandle handle_;
};
thread_local Phases* Phases::current = nullptr;

void label(Tracer& tracer, const Tree& tensors, MemoryKind kind) {
  for_each_leaf(tensors, [&](const std::string&, const Tree& leaf) {
    if (leaf.is_tensor() && leaf.tensor().defined()) tracer.label(memory_of(leaf.tensor()), kind);
  });
}

}  // namespace

void add(Collectives& sum, const Collectives& more, int64_t times) {
  for (const auto& [name, counters] : more)
    for (size_t kind = 0; kind < counters.size(); ++kind) {
      sum[name][kind].count += times * counters[kind].count;
      sum[name][kind].bytes += times * counters[kind].bytes;
    }
}

Unlogged::Unlogged() : was_on_(mesh::SpmdLog::get().is_on()), moves_(move_counters()) {
  if (was_on_) mesh::SpmdLog::get().pause(true);
}

Unlogged::~Unlogged() {
  if (was_on_) mesh::SpmdLog::get().pause(false);
  move_counters() = std::move(moves_);
}

StepTrace trace_step(const TracedProgram& program, const TracedLayout& layout, int64_t n_steps) {
  Unlogged unlogged;
  WithPlannedDevice with_device(layout.library == Library::gloo ? c10::kCPU : c10::kCUDA);
  const Deployer& own = *program.options.deployer;
  std::shared_ptr<Mesh> mesh = mesh::make_imagined_mesh(layout.mesh, layout.library);
  DeployerOptions options;
  options.seed = own.seed();
  options.zero = layout.zero;
  options.zero_min_size = own.zero_min_size();
  options.sequence_parallel = layout.sequence_parallel;
  options.verbose = false;

  Tracer tracer(mesh);
  StepTrace trace;
  trace.n_parameters = count_numbers(program.options.params);
  TrainerOptions of_trainer = program.options;
  of_trainer.deployer = Deployer::on_mesh(options, mesh);
  of_trainer.params = whole_on_meta(program.options.params, mesh);
  of_trainer.opt_state.reset();
  of_trainer.last_ckpt_info = {};
  of_trainer.accumulate_grad_batches = layout.n_accumulated;
  of_trainer.recompute = layout.recompute;
  if (of_trainer.train_step_fn) of_trainer.accumulate_grad_batches.reset();
  const WithHostMover mover([&](const at::Tensor& tensor) {
    if (layout.library == Library::nccl) tracer.move_to_host(tensor);
  });
  Trainer trainer(std::move(of_trainer));

  int64_t n_micro = layout.per_device_batch_size * layout.mesh.n_copies();
  auto examples_of = [&](int64_t n_batches) {
    return imagined_examples(program.examples, n_micro * n_batches, layout.per_device_batch_size,
                             mesh);
  };
  const Dataset examples = examples_of(layout.n_accumulated);
  // The first step makes what later steps find, such as the states of the optimizer. Two
  // micro-batches do all that more of them do, except that the store of ZeRO 3 learns the order in
  // which the passes of a step read blocks.
  const Dataset first_examples =
      layout.zero == 3 ? examples : examples_of(std::min<int64_t>(layout.n_accumulated, 2));
  trainer.setup_running_step(
      layout_examples(program.examples, n_micro, layout.per_device_batch_size),
      layout.per_device_batch_size);
  label(tracer, trainer.state().params, MemoryKind::parameters);
  label(tracer, trainer.state().opt_state, MemoryKind::states);
  FirstPasses first_passes(*mesh, layout.n_accumulated);
  Phases phases(first_passes, [&] {
    for (const auto& [name, param] : named_tensors(trainer.state().params))
      if (param.grad().defined()) tracer.label(memory_of(param.grad()), MemoryKind::gradients);
  });
  int64_t n_blocks = RecomputeBlocks::n_blocks();
  auto collect = [&before_batch = program.options.before_batch] {
    if (before_batch) before_batch();
  };
  constexpr int64_t most_further_steps = 6;
  collect();
  tracer.begin_step();
  for (int64_t step = 1; step <= n_steps + most_further_steps; ++step) {
    const int64_t found = tracer.alive_bytes();
    const Collectives before = counted(*mesh);
    first_passes.begin_step();
    trainer.train_step(step < n_steps ? first_examples : examples, layout.per_device_batch_size);
    trace.collectives = difference(counted(*mesh), before);
    trace.of_micro_batch = first_passes.of_micro_batch();
    collect();
    trace.step = tracer.end_step();
    // The garbage of several small steps is freed at once. Returns the step that found the most:
    // the first that leaves no more memory than it found.
    if (step >= n_steps && tracer.alive_bytes() <= found) break;
  }
  trace.has_blocks = RecomputeBlocks::n_blocks() > n_blocks;
  trace.decisions = trainer.sharding_decisions();
  const auto& chunks = trainer.stage_decisions().stages;
  trace.stages.resize(std::min(chunks.size(), size_t(layout.mesh.stages)));
  for (size_t i = 0; i < chunks.size(); ++i) {
    StageDecisions::Stage& stage = trace.stages[i % trace.stages.size()];
    stage.n_blocks += chunks[i].n_blocks;
    stage.flops += chunks[i].flops;
  }
  return trace;
}

}  // namespace redco::plan
