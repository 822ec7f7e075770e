// Chooses the layout of a run that was started without one.

#include "cluster/device_tables.h"
#include "cluster/this_host.h"

#include <redco/calibration.h>
#include <redco/detail/notes.h>
#include <redco/error.h>
#include <redco/plan.h>
#include <redco/random.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>

namespace redco {

using namespace plan;

namespace {

// The least memory that any process may use.
int64_t least_memory(const Mesh& mesh, const LayoutChoice& choice) {
  const Processes& processes = mesh.processes();
  int64_t own =
      choice.memory.value_or(memory_of(mesh.device(), std::max<int64_t>(1, processes.local_size)));
  at::Tensor least = at::tensor({own}, at::kLong).to(mesh.device());
  return mesh.world().all_reduce(least, ReduceOp::min).item<int64_t>();
}

// The devices of this run.
ClusterSpec cluster_of(const Mesh& mesh, int64_t memory) {
  const Processes& processes = mesh.processes();
  int64_t n_local = std::max<int64_t>(1, processes.local_size);
  ClusterSpec cluster = here_calibrated(n_local);
  HostGroup& host = cluster.hosts.front();
  host.devices = n_local;
  host.count = std::max<int64_t>(1, processes.size / n_local);
  bool is_cpu = host.device.kind == DeviceFacts::cpu;
  host.device.memory = is_cpu ? memory * n_local : memory;
  if (host.count > 1 && !cluster.network)
    cluster.network = NetworkFacts{.link = *find_link(is_cpu ? "eth-10" : "ib-400")};
  return cluster;
}

// Writes the choice as text for the other processes, and reads it back.
std::string packed(const PlannedLayout& layout) {
  std::ostringstream text;
  text << layout.n_copies << " " << layout.n_model_shards << " " << layout.n_context_shards << " "
       << layout.n_expert_shards << " " << layout.n_pipeline_stages << " "
       << layout.n_chunks_per_stage << " " << layout.zero << " " << layout.zero_group << " "
       << layout.sequence_parallel << " " << int(layout.recompute) << " "
       << layout.per_device_batch_size << " " << layout.n_accumulated << " " << layout.total << " "
       << layout.seconds;
  return text.str();
}

PlannedLayout unpacked(const std::string& text) {
  std::istringstream words(text);
  PlannedLayout layout{.is_planned = true, .fits = true};
  int recompute = 0;
  words >> layout.n_copies >> layout.n_model_shards >> layout.n_context_shards >>
      layout.n_expert_shards >> layout.n_pipeline_stages >> layout.n_chunks_per_stage >>
      layout.zero >> layout.zero_group >> layout.sequence_parallel >> recompute >>
      layout.per_device_batch_size >> layout.n_accumulated >> layout.total >> layout.seconds;
  layout.recompute = Recompute(recompute);
  return layout;
}

// Restores the random generator: the numbers that a script draws for the plan are not compared
// between processes.
class DrawsNothing {
 public:
  DrawsNothing() : state_(generator_.get_state()) {}
  ~DrawsNothing() { generator_.set_state(state_); }
  DrawsNothing(const DrawsNothing&) = delete;
  DrawsNothing& operator=(const DrawsNothing&) = delete;

 private:
  at::Generator generator_ = at::detail::getDefaultCPUGenerator();
  at::Tensor state_;
};

void check_rules(const TrainerOptions& trainer, const LayoutChoice& choice) {
  if (!choice.n_model_shards) return;
  for (const ShardingRule& rule : trainer.params_sharding_rules)
    require(
        !rule.placement.is_sharded(), "Deployer: n_model_shards = \"auto\", but the rule \"",
        rule.pattern,
        "\" of params_sharding_rules splits parameters: give the number of model shards that it "
        "is for");
}

void log_choice(Deployer& deployer, const PlannedLayout& layout, int64_t memory) {
  std::ostringstream text;
  text << "n_model_shards = " << layout.n_model_shards << ", zero = " << layout.zero;
  if (layout.n_context_shards > 1) text << ", n_context_shards = " << layout.n_context_shards;
  if (layout.n_expert_shards > 1) text << ", n_expert_shards = " << layout.n_expert_shards;
  if (layout.n_pipeline_stages > 1) text << ", n_pipeline_stages = " << layout.n_pipeline_stages;
  if (layout.n_chunks_per_stage > 1) text << ", n_chunks_per_stage = " << layout.n_chunks_per_stage;
  const bool is_grouped = layout.zero_group * layout.n_expert_shards < layout.n_copies;
  if (layout.zero > 0 && is_grouped) text << ", zero_group = " << layout.zero_group;
  if (layout.sequence_parallel) text << ", sequence_parallel = true";
  if (layout.recompute != Recompute::none)
    text << ", recompute = \"" << name_of(layout.recompute) << "\"";
  constexpr double mib = 1 << 20;
  text << ", per_device_batch_size = " << layout.per_device_batch_size
       << " (planned: " << int64_t(double(layout.total) / mib) << " of "
       << int64_t(double(memory) / mib) << " MiB of a device)";
  deployer.log_info(text.str(), "Layout");
}

}  // namespace

PlannedLayout choose_layout(const TrainerOptions& trainer, const Dataset& examples,
                            const PlanOptions& given) {
  Deployer& deployer = *trainer.deployer;
  const LayoutChoice choice = deployer.choice();
  require(!choice.is_empty(), "choose_layout: the Deployer has a layout");
  check_rules(trainer, choice);
  const ProcessLayout known = deployer.layout();
  std::shared_ptr<Mesh> mesh = deployer.mesh();
  PlanOptions options = given;
  options.n_model_shards = choice.n_model_shards ? 1 : known.n_model_shards;
  options.n_context_shards = known.n_context_shards;
  options.n_expert_shards = known.n_expert_shards;
  options.n_pipeline_stages = known.n_pipeline_stages;
  options.n_chunks_per_stage = known.n_chunks_per_stage;
  options.zero = choice.zero ? 0 : known.zero;
  options.zero_group = known.zero_group;
  options.sequence_parallel = known.sequence_parallel && !choice.sequence_parallel;
  options.has_asked = false;
  options.tries_model_shards = choice.n_model_shards;
  options.tries_zero = choice.zero;
  options.tries_sequence_parallel = choice.sequence_parallel;
  int64_t memory = least_memory(*mesh, choice);

  const bool is_alone = mesh->world().size() == 1;
  std::string key = is_alone ? "" : "layout/" + mesh->notes().next_exchange();
  std::string text;
  std::exception_ptr failure;
  if (mesh->world().rank() == 0) {
    try {
      DrawsNothing draws_nothing;
      StepPlan plan = plan_step(trainer, examples, cluster_of(*mesh, memory), options);
      require(plan.why.empty(), "Deployer: ", plan.why);
      text = packed(plan.layouts.front());
    } catch (const std::exception& error) {
      failure = std::current_exception();
      text = std::string("!") + error.what();
    }
    if (!is_alone) mesh->notes().leave(key, text);
    if (failure) std::rethrow_exception(failure);
  } else {
    text = mesh->notes().await(key, "choosing the layout");
    require(!text.starts_with("!"), text.substr(1));
  }
  PlannedLayout layout = unpacked(text);
  deployer.set_layout({.n_model_shards = layout.n_model_shards,
                       .n_context_shards = layout.n_context_shards,
                       .n_expert_shards = layout.n_expert_shards,
                       .n_pipeline_stages = layout.n_pipeline_stages,
                       .n_chunks_per_stage = layout.n_chunks_per_stage,
                       .zero = layout.zero,
                       .zero_group = layout.zero_group * layout.n_expert_shards < layout.n_copies
                                         ? layout.zero_group
                                         : zero_group_of_all,
                       .sequence_parallel = layout.sequence_parallel});
  log_choice(deployer, layout, memory);
  return layout;
}

}  // namespace redco
