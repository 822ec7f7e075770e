// The layouts that a step can have on a cluster.

#include "layouts.h"

#include "trace/step_trace.h"
#include "trace/tracer.h"

#include <redco/error.h>
#include <redco/sharding.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

namespace redco::plan {

namespace {

int64_t bytes_of(const Tree& tree) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : named_tensors(tree))
    bytes += tensor.numel() * int64_t(tensor.element_size());
  return bytes;
}

// Returns the number of copies that share ZeRO's state.
int64_t zero_group_of(const PlanOptions& options, const PlannedLayout& layout,
                      const ClusterSpec& cluster) {
  if (layout.zero == 0 || options.zero_group == zero_group_of_all)
    return layout.n_copies / layout.n_expert_shards;
  if (options.zero_group != zero_group_of_host) return options.zero_group;
  return std::max<int64_t>(1, cluster.devices_per_host() / layout.n_model_shards /
                                  layout.n_context_shards / layout.n_expert_shards);
}

}  // namespace

bool is_same(const PlannedLayout& a, const PlannedLayout& b) {
  auto facts = [](const PlannedLayout& layout) {
    return std::tuple(layout.n_model_shards, layout.zero, layout.zero_group,
                      layout.sequence_parallel, layout.recompute, layout.compute_dtype,
                      layout.per_device_batch_size);
  };
  return facts(a) == facts(b);
}

WholeBytes whole_bytes(const TrainerOptions& options) {
  std::shared_ptr<Mesh> mesh = mesh::make_imagined_mesh({});
  Tracer tracer(mesh);
  Tracer::Pause pause(tracer);
  std::vector<NamedTensor> trained;
  WholeBytes whole;
  std::set<const void*> counted;
  for (const auto& [name, param] : named_tensors(whole_on_meta(options.params, mesh))) {
    if (!counted.insert(param.unsafeGetTensorImpl()).second) continue;
    int64_t bytes = param.numel() * int64_t(param.element_size());
    whole.parameters += bytes;
    if (!param.is_floating_point() || !options.optimizer->trains(name, param)) continue;
    whole.gradients += bytes;
    trained.emplace_back(name, param);
  }
  if (!options.offload_optimizer) {
    whole.states = bytes_of(options.optimizer->init(trained));
  } else if (options.compute_dtype != at::kFloat) {
    // The parameters may be on the host, and only copies in the compute dtype on the device.
    for (const auto& [name, param] : trained)
      whole.parameters -=
          param.numel() *
          std::max<int64_t>(
              0, int64_t(param.element_size()) - int64_t(c10::elementSize(options.compute_dtype)));
  }
  return whole;
}

int64_t least_states(const WholeBytes& whole, const PlannedLayout& layout) {
  auto part = [&](int64_t bytes, int64_t from_zero) {
    return bytes / layout.n_model_shards / layout.n_pipeline_stages /
           (layout.zero >= from_zero ? layout.zero_group * layout.n_context_shards : 1);
  };
  return part(whole.parameters, 3) + part(whole.gradients, 2) + part(whole.states, 1);
}

int64_t global_batch_of(const PlanOptions& options, const TrainerOptions& trainer,
                        const PlannedLayout& asked) {
  int64_t micro = asked.per_device_batch_size * asked.n_copies;
  return options.global_batch_size.value_or(micro * trainer.accumulate_grad_batches.value_or(1));
}

PlannedLayout asked_layout(const PlanOptions& options, const TrainerOptions& trainer,
                           const ClusterSpec& cluster) {
  int64_t n = cluster.n_devices();
  require(options.per_device_batch_size > 0,
          "plan: per_device_batch_size = ", options.per_device_batch_size, " must be positive");
  require(options.n_model_shards > 0 && n % options.n_model_shards == 0,
          "plan: n_model_shards = ", options.n_model_shards, " does not divide the ", n,
          " devices of the cluster");
  require(
      options.n_context_shards > 0 && n / options.n_model_shards % options.n_context_shards == 0,
      "plan: n_context_shards = ", options.n_context_shards, " does not divide ",
      n / options.n_model_shards, ", the number of devices / n_model_shards");
  const int64_t n_shards = options.n_model_shards * options.n_context_shards;
  require(options.n_pipeline_stages > 0 && n / n_shards % options.n_pipeline_stages == 0,
          "plan: n_pipeline_stages = ", options.n_pipeline_stages, " does not divide ",
          n / n_shards, ", the number of devices / (n_model_shards * n_context_shards)");
  require(options.n_chunks_per_stage == 1 ||
              (options.n_chunks_per_stage > 1 && options.n_pipeline_stages > 1),
          "plan: n_chunks_per_stage = ", options.n_chunks_per_stage,
          " divides the stages of a pipeline: give n_pipeline_stages, too");
  const int64_t n_copies = n / n_shards / options.n_pipeline_stages;
  require(options.n_expert_shards > 0 && n_copies % options.n_expert_shards == 0,
          "plan: n_expert_shards = ", options.n_expert_shards, " does not divide ", n_copies,
          ", the number of copies of the model");
  PlannedLayout asked;
  asked.is_asked = true;
  asked.n_model_shards = options.n_model_shards;
  asked.n_context_shards = options.n_context_shards;
  asked.n_expert_shards = options.n_expert_shards;
  asked.n_pipeline_stages = options.n_pipeline_stages;
  asked.n_chunks_per_stage = options.n_chunks_per_stage;
  asked.n_copies = n_copies;
  asked.zero = options.zero;
  asked.zero_group = zero_group_of(options, asked, cluster);
  const int64_t n_sharing = n_copies / asked.n_expert_shards;
  require(asked.zero_group > 0 && n_sharing % asked.zero_group == 0,
          "plan: zero_group = ", asked.zero_group, " does not divide the ", n_sharing,
          " copies of the model");
  asked.sequence_parallel = options.sequence_parallel;
  asked.recompute = trainer.recompute;
  asked.compute_dtype = trainer.compute_dtype;
  asked.per_device_batch_size = options.per_device_batch_size;
  int64_t micro = asked.per_device_batch_size * asked.n_copies;
  int64_t global = global_batch_of(options, trainer, asked);
  require(global > 0, "plan: global_batch_size = ", global, " must be positive");
  if (global % micro != 0) {
    std::ostringstream why;
    why << "global_batch_size = " << global << " is no multiple of " << micro
        << " (per_device_batch_size = " << asked.per_device_batch_size << " on " << asked.n_copies
        << " copies of the model); the nearest: ";
    if (global > micro) why << global / micro * micro << " and ";
    why << (global / micro + 1) * micro;
    asked.why = why.str();
  }
  asked.n_accumulated = std::max<int64_t>(1, global / micro);
  return asked;
}

std::vector<PlannedLayout> other_layouts(const PlannedLayout& asked, int64_t global_batch_size,
                                         const PlanOptions& options, const TrainerOptions& trainer,
                                         const ClusterSpec& cluster) {
  std::vector<PlannedLayout> all;
  // All layouts split the positions of an example alike, and have the same stages.
  const int64_t n_context = asked.n_context_shards, n_stages = asked.n_pipeline_stages;
  int64_t n = cluster.n_devices() / n_context / n_stages;
  int64_t of_host = cluster.devices_per_host() / n_context;
  int64_t most = options.max_model_shards.value_or(of_host);
  if (!options.tries_model_shards) most = asked.n_model_shards;
  for (int64_t mp = 1; mp <= std::min(n, most); ++mp) {
    int64_t copies = n / mp;
    if (n % mp != 0 || global_batch_size % copies != 0) continue;
    if (copies % asked.n_expert_shards != 0) continue;
    if (!options.tries_model_shards && mp != asked.n_model_shards) continue;
    int64_t per_copy = global_batch_size / copies;
    int64_t batch =
        std::clamp<int64_t>(asked.per_device_batch_size * mp / asked.n_model_shards, 1, per_copy);
    while (per_copy % batch != 0) --batch;
    if (trainer.train_step_fn) batch = per_copy;
    PlannedLayout layout;
    layout.n_copies = copies;
    layout.n_model_shards = mp;
    layout.n_context_shards = n_context;
    layout.n_expert_shards = asked.n_expert_shards;
    layout.n_pipeline_stages = n_stages;
    layout.n_chunks_per_stage = asked.n_chunks_per_stage;
    const int64_t n_sharing = copies / layout.n_expert_shards;
    layout.per_device_batch_size = batch;
    layout.n_accumulated = per_copy / batch;
    for (layout.zero = 0; layout.zero <= (n_sharing * n_context > 1 ? 3 : 0); ++layout.zero) {
      if (!options.tries_zero && layout.zero != asked.zero) continue;
      // ZeRO's groups span all copies, or those of one host: then only sums of gradients move
      // between hosts.
      std::set<int64_t> groups{n_sharing};
      int64_t in_host = of_host / mp / layout.n_expert_shards;
      if (layout.zero > 0 && in_host > 1 && n_sharing % in_host == 0) groups.insert(in_host);
      std::set<c10::ScalarType> dtypes{asked.compute_dtype};
      if (options.tries_dtype && asked.compute_dtype == at::kFloat) dtypes.insert(at::kBFloat16);
      std::set<bool> sequence{asked.sequence_parallel && mp > 1};
      if (options.tries_sequence_parallel && mp > 1) sequence = {false, true};
      for (int64_t group : groups)
        for (bool is_on : sequence)
          for (c10::ScalarType dtype : dtypes) {
            layout.zero_group = group;
            layout.sequence_parallel = is_on;
            layout.compute_dtype = dtype;
            if (!is_same(layout, asked)) all.push_back(layout);
          }
    }
  }
  // Sequence parallelism comes last, because the time may not suffice for all layouts.
  std::ranges::stable_sort(all, {}, &PlannedLayout::sequence_parallel);
  return all;
}

std::optional<PlannedLayout> with_smaller_batch(const PlannedLayout& layout, int64_t most) {
  int64_t per_copy = layout.per_device_batch_size * layout.n_accumulated;
  int64_t batch = std::min(most, layout.per_device_batch_size - 1);
  if (batch < 1) return std::nullopt;
  while (per_copy % batch != 0) --batch;
  PlannedLayout smaller = layout;
  smaller.per_device_batch_size = batch;
  smaller.n_accumulated = per_copy / batch;
  return smaller;
}

}  // namespace redco::plan
