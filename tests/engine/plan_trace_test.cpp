// A planned step against the same step on threads: what is sent, and what is alive.
#include "selection.h"
#include "thread_mesh.h"

#include "../../engine/plan/cost/cost_model.h"
#include "../../engine/plan/trace/step_trace.h"

#include <redco/nn.h>
#include <redco/plan.h>
#include <redco/sharding.h>
#include <redco/trainer.h>

#include <doctest/doctest.h>

#include <atomic>
#include <map>

using namespace redco;
using plan::StepTrace;
using plan::TracedLayout;
using plan::TracedProgram;

namespace {

constexpr int64_t vocabulary = 512, hidden = 64, n_heads = 8, length = 16, n_layers = 2;

Tree transformer() {
  auto weight = [](at::IntArrayRef sizes) { return at::full(sizes, 0.01f); };
  Tree::Dict params{{"embedding", weight({vocabulary, hidden})}, {"norm", weight({hidden})}};
  for (int64_t i = 0; i < n_layers; ++i) {
    Tree::Dict layer{{"norm", weight({hidden})}};
    for (const char* name : {"q", "k", "v", "o"}) layer[name] = weight({hidden, hidden});
    layer["up"] = weight({4 * hidden, hidden});
    layer["down"] = weight({hidden, 4 * hidden});
    params["layer" + std::to_string(i)] = layer;
  }
  return params;
}

at::Tensor normalized(const at::Tensor& x, const at::Tensor& weight) {
  return at::layer_norm(x, {hidden}, weight);
}

// A mutation: one weight is used twice, and another one never.
std::atomic<bool> leaves_out_a_weight = false;

Loss transformer_loss(at::Generator, const TrainState&, const Tree& params, const Tree& batch,
                      bool) {
  at::Tensor ids = batch.at("ids").tensor();
  at::Tensor x = at::embedding(params.at("embedding").tensor(), ids);
  for (int64_t i = 0; i < n_layers; ++i) {
    const Tree& layer = params.at("layer" + std::to_string(i));
    auto weight = [&](const char* name) { return layer.at(name).tensor(); };
    at::Tensor y = normalized(x, weight("norm"));
    auto heads = [&](const char* name) {
      return at::linear(y, weight(name))
          .view({-1, length, n_heads, hidden / n_heads})
          .transpose(1, 2);
    };
    at::Tensor a =
        at::scaled_dot_product_attention(heads("q"), heads("k"), heads("v"), {}, 0.0, true);
    const char* out = leaves_out_a_weight && i == 0 ? "v" : "o";
    x = x + at::linear(a.transpose(1, 2).reshape({-1, length, hidden}), weight(out));
    x = x + at::linear(at::gelu(at::linear(x, weight("up"))), weight("down"));
  }
  x = normalized(x, params.at("norm").tensor());
  return {linear_cross_entropy(x, params.at("embedding").tensor(), ids)};
}

Tree convolutions() {
  return Tree::Dict{{"first", at::full({16, 3, 3, 3}, 0.01f)},
                    {"second", at::full({32, 16, 3, 3}, 0.01f)},
                    {"scale", at::full({32}, 1.f)},
                    {"shift", at::zeros({32})},
                    {"head", at::full({10, 32 * 16}, 0.01f)}};
}

Loss convolutions_loss(at::Generator, const TrainState&, const Tree& params, const Tree& batch,
                       bool) {
  auto weight = [&](const char* name) { return params.at(name).tensor(); };
  at::Tensor x = at::relu(at::conv2d(batch.at("x").tensor(), weight("first"), {}, 1, 1));
  x = at::max_pool2d(at::conv2d(x, weight("second"), {}, 1, 1), 2);
  x = at::relu(at::group_norm(x, 8, weight("scale"), weight("shift")));
  at::Tensor logits = at::linear(x.flatten(1), weight("head"));
  return {at::cross_entropy_loss(logits, batch.at("y").tensor())};
}

Tree experts() {
  return Tree::Dict{{"embedding", at::full({vocabulary, hidden}, 0.01f)},
                    {"first", at::full({4 * hidden, hidden}, 0.01f)},
                    {"second", at::full({4 * hidden, hidden}, 0.01f)}};
}

// Each token chooses both experts.
Loss experts_loss(at::Generator, const TrainState&, const Tree& params, const Tree& batch, bool) {
  at::Tensor ids = batch.at("ids").tensor();
  at::Tensor x = at::embedding(params.at("embedding").tensor(), ids).flatten(0, 1);
  at::Tensor choices = at::stack({at::zeros_like(ids), at::ones_like(ids)}, -1).flatten(0, 1);
  return {grouped_linear(x, choices, {params.at("first").tensor(), params.at("second").tensor()})
              .square()
              .mean()};
}

struct Model {
  const char* name;
  Tree (*params)();
  LossFn loss;
};

const Model models[] = {{"transformer", transformer, transformer_loss},
                        {"convolutions", convolutions, convolutions_loss}};

TracedProgram program_of(const Model& model, std::shared_ptr<Deployer> deployer) {
  TrainerOptions options{.deployer = std::move(deployer),
                         .params = model.params(),
                         .loss_fn = model.loss,
                         .optimizer = adamw({.learning_rate = 0.01})};
  Dataset examples{64, [](const std::vector<int64_t>& indices) -> Tree {
                     auto n = int64_t(indices.size());
                     return Tree::Dict{{"ids", at::ones({n, length}, at::kLong)},
                                       {"x", at::ones({n, 3, 8, 8})},
                                       {"y", at::ones({n}, at::kLong)}};
                   }};
  return {std::move(options), std::move(examples)};
}

using Counted = std::map<std::string, Group::Counters>;

Counted counted(const Mesh& mesh) {
  Counted all;
  for (Mesh::Dim dim : Mesh::dims) all[mesh.group(dim).name()] = mesh.group(dim).counters();
  all["world"] = mesh.world().counters();
  return all;
}

// The counters of rank 0 for steps 2 and 3, on threads.
std::vector<Counted> measured(const Model& model, const TracedLayout& layout) {
  std::vector<Counted> steps;
  Mesh::Shape shape{layout.mesh.zero,    layout.mesh.replicated, 1,
                    layout.mesh.context, layout.mesh.model,      1};
  testing::on_threads(shape, [&](const std::shared_ptr<const Mesh>& given) {
    auto mesh = std::const_pointer_cast<Mesh>(given);
    auto deployer = Deployer::on_mesh(
        {.zero = layout.zero, .sequence_parallel = layout.sequence_parallel, .verbose = false},
        mesh);
    TracedProgram program = program_of(model, deployer);
    program.options.accumulate_grad_batches = layout.n_accumulated;
    Trainer trainer(program.options);
    Dataset examples = head(program.examples, layout.per_device_batch_size *
                                                  layout.mesh.n_copies() * layout.n_accumulated);
    for (int step = 0; step < 3; ++step) {
      Counted before = counted(*mesh);
      trainer.train_step(examples, layout.per_device_batch_size);
      Counted now = counted(*mesh);
      for (auto& [name, counters] : now)
        for (size_t kind = 0; kind < counters.size(); ++kind) {
          counters[kind].count -= before[name][kind].count;
          counters[kind].bytes -= before[name][kind].bytes;
        }
      if (mesh->processes().rank == 0 && step > 0) steps.push_back(now);
    }
  });
  return steps;
}

std::string text_of(const Counted& counted) {
  std::string text;
  for (const auto& [name, counters] : counted)
    for (size_t kind = 0; kind < counters.size(); ++kind)
      if (counters[kind].bytes > 0)
        text += name + "." + Group::name(Group::Kind(kind)) + " " +
                std::to_string(counters[kind].count) + " x " +
                std::to_string(counters[kind].bytes) + "; ";
  return text;
}

}  // namespace

TEST_CASE("a planned step sends what the step on threads sends") {
  auto own = Deployer::on_mesh({.verbose = false}, redco::mesh::make_imagined_mesh({}));
  auto compare = [&](const Model& model, const TracedLayout& layout) {
    CAPTURE(model.name);
    CAPTURE(layout.mesh.zero);
    CAPTURE(layout.mesh.model);
    CAPTURE(layout.mesh.replicated);
    CAPTURE(layout.zero);
    CAPTURE(layout.sequence_parallel);
    CAPTURE(layout.n_accumulated);
    StepTrace planned = trace_step(program_of(model, own), layout);
    auto steps = measured(model, layout);
    REQUIRE(steps.size() == 2);
    for (const Counted& step : steps) CHECK(text_of(planned.collectives) == text_of(step));
    CHECK(text_of(steps[0]) != "");
  };
  for (const Model& model : models)
    for (redco::mesh::MeshSize mesh : {redco::mesh::MeshSize{2, 1}, redco::mesh::MeshSize{1, 2},
                                       redco::mesh::MeshSize{2, 2}, redco::mesh::MeshSize{2, 1, 2}})
      for (int64_t zero = mesh.replicated > 1 ? 1 : 0; zero <= 3; ++zero)
        for (int64_t n_accumulated : {1, 2}) {
          if (!runs_all() && n_accumulated != 1 + zero % 2) continue;
          TracedLayout layout{.mesh = mesh,
                              .zero = zero,
                              .per_device_batch_size = 2,
                              .n_accumulated = n_accumulated};
          compare(model, layout);
          layout.sequence_parallel = true;
          if (mesh.model > 1 && &model == &models[0]) compare(model, layout);
        }
}

TEST_CASE("the kind and the size of products are traced") {
  auto own = Deployer::on_mesh({.verbose = false}, redco::mesh::make_imagined_mesh({}));
  std::map<std::string, std::pair<redco::ProductKind, int64_t>> found;
  for (const Model& model : models) {
    TracedLayout layout{.mesh = {1, 1}, .per_device_batch_size = 2};
    for (const plan::Operator& call : trace_step(program_of(model, own), layout).step.log.operators)
      if (call.flops > 0) found[call.name] = {call.kind, call.size};
  }
  using redco::ProductKind;
  auto is = [&](const char* name, ProductKind kind, int64_t size) {
    CAPTURE(name);
    CHECK(found.at(name).first == kind);
    CHECK(found.at(name).second == size);
  };
  CHECK(found.at("aten::mm").first == ProductKind::matmul);
  is("redco::linear_cross_entropy", ProductKind::matmul, 2 * length);
  is("aten::_scaled_dot_product_flash_attention_for_cpu", ProductKind::attention, length);
  is("aten::_scaled_dot_product_flash_attention_for_cpu_backward", ProductKind::attention, length);
  is("aten::convolution", ProductKind::convolution, 16);
  is("aten::convolution_backward", ProductKind::convolution, 3);
}

TEST_CASE("the step before the traced one has two micro-batches, or with ZeRO 3 all") {
  auto own = Deployer::on_mesh({.verbose = false}, redco::mesh::make_imagined_mesh({}));
  auto n_batches = [&](int64_t n_accumulated, int64_t zero) {
    TracedProgram program = program_of(models[0], own);
    int64_t n = 0;
    program.options.loss_fn = [&](at::Generator rng, const TrainState& state, const Tree& params,
                                  const Tree& batch, bool is_training) {
      ++n;
      return models[0].loss(std::move(rng), state, params, batch, is_training);
    };
    trace_step(program, {.mesh = {.zero = 2},
                         .zero = zero,
                         .per_device_batch_size = 2,
                         .n_accumulated = n_accumulated});
    return n;
  };
  CHECK(n_batches(5, 1) - n_batches(2, 1) == 3);
  CHECK(n_batches(5, 3) - n_batches(2, 3) == 6);
}

TEST_CASE("products with experts take time, by the sizes of their matrices") {
  auto own = Deployer::on_mesh({.verbose = false}, redco::mesh::make_imagined_mesh({}));
  const TracedProgram program = program_of({"experts", experts, experts_loss}, own);
  StepTrace planned = trace_step(program, {.mesh = {}, .per_device_batch_size = 2});
  double flops = 0;
  for (const plan::Operator& call : planned.step.log.operators) {
    if (call.flops == 0) continue;
    CAPTURE(call.name);
    CHECK(call.size == 2 * length);  // the rows; features are more
    flops += call.flops;
  }
  // Forward, and the gradients of x and of the weights.
  CHECK(flops == 3 * 2.0 * (2 * length * 2) * (hidden * 4 * hidden));
}

TEST_CASE("cross-entropy runs as on the devices of the plan") {
  auto own = Deployer::on_mesh({.verbose = false}, redco::mesh::make_imagined_mesh({}));
  const TracedProgram program = program_of(models[0], own);
  // Of the bytes allocated in the operator, and those that it reads and writes inside.
  auto of_library = [&](plan::Library library) {
    StepTrace planned =
        trace_step(program, {.mesh = {}, .library = library, .per_device_batch_size = 2});
    int64_t allocated = 0, inside = 0;
    for (const auto& [number, block] : planned.step.blocks)
      if (block.operator_name == "redco::linear_cross_entropy") allocated += block.bytes;
    for (const plan::Operator& call : planned.step.log.operators) inside += call.bytes_inside;
    return std::pair(allocated, inside);
  };
  auto [on_cpu, inside_cpu] = of_library(plan::Library::gloo);
  auto [on_gpu, inside_gpu] = of_library(plan::Library::nccl);
  CHECK(inside_cpu == 0);
  CHECK(inside_gpu > 0);
  CHECK(on_gpu < on_cpu);  // the kernels replace the logits by their gradients
}

TEST_CASE("one gather less than planned is noticed") {
  auto own = Deployer::on_mesh({.verbose = false}, redco::mesh::make_imagined_mesh({}));
  TracedLayout layout{.mesh = {2, 1}, .zero = 3, .per_device_batch_size = 2};
  StepTrace planned = trace_step(program_of(models[0], own), layout);
  CHECK(text_of(planned.collectives) == text_of(measured(models[0], layout).at(0)));
  leaves_out_a_weight = true;
  CHECK(text_of(planned.collectives) != text_of(measured(models[0], layout).at(0)));
  leaves_out_a_weight = false;
}

TEST_CASE("what a step gathers ahead ends with the step") {
  auto own = Deployer::on_mesh({.verbose = false}, redco::mesh::make_imagined_mesh({}));
  TracedLayout layout{.mesh = {2, 1}, .zero = 3, .per_device_batch_size = 2};
  TracedProgram program = program_of(models[0], own);
  // The last pass reads the parameters and ends early: it needs no gradients.
  program.options.train_step_fn = [](at::Generator rng, Trainer& trainer,
                                     const Tree& batch) -> Tree {
    auto loss = [&](const Tree& params) {
      return transformer_loss(rng, trainer.state(), params, batch, true).loss;
    };
    ValueAndGrad found = trainer.value_and_grad(loss);
    trainer.apply_gradients(found.grads);
    loss(trainer.state().params);
    return Tree::Dict{{"loss", found.value}};
  };
  StepTrace planned = trace_step(program, layout, /*n_steps=*/3);
  const plan::StepLog& log = planned.step.log;
  plan::CostModel cost(ClusterSpec::from_text("1x A100-80G:2"));
  CHECK(cost.simulate(log).total > 0);
}

TEST_CASE("what exists before a planned step exists after it, and nothing else") {
  auto own = Deployer::on_mesh({.verbose = false}, redco::mesh::make_imagined_mesh({}));
  for (const Model& model : models) {
    CAPTURE(model.name);
    StepTrace planned =
        trace_step(program_of(model, own), {.mesh = {}, .per_device_batch_size = 2});
    int64_t before = 0, after = 0, parameters = 0;
    bool has_begun = false;
    for (const auto& event : planned.step.log.sequence) {
      has_begun |= event.what != plan::StepLog::What::allocation;
      if (event.what != plan::StepLog::What::allocation) continue;
      const plan::Allocation& allocation = planned.step.log.allocations[size_t(event.index)];
      after += allocation.bytes;
      if (has_begun) continue;
      before += allocation.bytes;
      if (allocation.kind == plan::MemoryKind::parameters) parameters += allocation.bytes;
    }
    int64_t expected = 0;
    for (const auto& [name, param] : named_tensors(model.params()))
      expected += int64_t(param.nbytes());
    CHECK(parameters == expected);
    CHECK(after <= before);
    CHECK(after >= 3 * expected);  // with the two states of adamw
  }
}

TEST_CASE("a plan has the best layouts first, and the one that is asked for") {
  auto own = Deployer::on_mesh({.verbose = false}, redco::mesh::make_imagined_mesh({}));
  TracedProgram program = program_of(models[0], own);
  ClusterSpec cluster = ClusterSpec::from_text("1x A100-80G:4");
  PlanOptions options;
  options.per_device_batch_size = 2;
  options.zero = 2;
  options.n_layouts = 3;
  StepPlan found = plan_step(program.options, program.examples, cluster, options);
  CHECK(found.global_batch_size == 8);
  CHECK(found.least_devices == 0);
  int n_asked = 0;
  double seconds = 0;
  for (const PlannedLayout& layout : found.layouts) {
    n_asked += int(layout.is_asked);
    CHECK(layout.n_copies * layout.n_model_shards == 4);
    CHECK(layout.n_copies * layout.per_device_batch_size * layout.n_accumulated == 8);
    CHECK(layout.fits);
    CHECK(layout.seconds >= seconds);
    seconds = layout.seconds;
    StepTrace alone = trace_step(program, {.mesh = {layout.zero_group, layout.n_model_shards,
                                                    layout.n_copies / layout.zero_group},
                                           .zero = layout.zero,
                                           .sequence_parallel = layout.sequence_parallel,
                                           .per_device_batch_size = layout.per_device_batch_size,
                                           .n_accumulated = layout.n_accumulated});
    CHECK(text_of(layout.collectives) == text_of(alone.collectives));
  }
  CHECK(n_asked == 1);

  // Nothing fits if nearly all of the memory is to stay free.
  options.margin = 0.9999;
  StepPlan none = plan_step(program.options, program.examples, cluster, options);
  for (const PlannedLayout& layout : none.layouts) {
    CHECK_FALSE(layout.fits);
    CHECK(layout.why != "");
  }
  CHECK(none.states > 0);
  CHECK(none.least_devices == 1);
}

TEST_CASE("optimizer states in the memory of the host: their bytes and their time") {
  auto own = Deployer::on_mesh({.verbose = false}, redco::mesh::make_imagined_mesh({}));
  TracedProgram program = program_of(models[0], own);
  program.options.params = Tree::Dict{{"w", at::zeros({4096, 4096})}, {"b", at::zeros({4096})}};
  program.options.loss_fn = [](at::Generator, const TrainState&, const Tree& params,
                               const Tree& batch, bool) {
    at::Tensor x = batch.at("x").tensor().reshape({-1, 192}).repeat({1, 22}).narrow(1, 0, 4096);
    return Loss{at::addmm(params.at("b").tensor(), x, params.at("w").tensor()).square().mean()};
  };
  PlanOptions options;
  options.per_device_batch_size = 4;
  options.n_layouts = 1;
  options.zero = 1;
  auto plan_on = [&](const char* devices, bool offloads) {
    program.options.offload_optimizer = offloads;
    const auto cluster = ClusterSpec::from_text(devices);
    return plan_step(program.options, program.examples, cluster, options).layouts[0];
  };
  for (const char* devices : {"1x H100-80G:1", "1x H100-80G:2"}) {
    CAPTURE(devices);
    const PlannedLayout on_device = plan_on(devices, false), on_host = plan_on(devices, true);
    CHECK(on_device.host_memory == 0);
    CHECK(on_host.host_memory > 0);
    // The states of the vector, and the number of steps, stay where they are.
    CHECK(on_host.memory.at("states") < 4096 * 8 + 600);
    CHECK(on_host.memory.at("states") + on_host.host_memory == on_device.memory.at("states"));
    CHECK(on_host.allocated == on_device.allocated - on_host.host_memory);
    CHECK(on_host.seconds - on_device.seconds > 0.6 * double(on_host.host_memory) / 50e9);
  }
}

TEST_CASE("if nothing fits, the plan names the memory that would do") {
  auto own = Deployer::on_mesh({.verbose = false}, redco::mesh::make_imagined_mesh({}));
  TracedProgram program = program_of(models[0], own);
  ClusterSpec cluster = ClusterSpec::from_text("1x A100-80G:4");
  cluster.reserve = {.context = 0, .group = 0, .workspace = 0};
  auto why_in = [&](int64_t memory, double timeout) {
    PlanOptions options;
    options.per_device_batch_size = 4;
    options.has_asked = false;
    options.timeout = timeout;
    cluster.hosts[0].device.memory = memory;
    return plan_step(program.options, program.examples, cluster, options).why;
  };
  auto named = [](const std::string& why) {
    const std::string before = "devices of ", after = " would do";
    CAPTURE(why);
    const size_t begin = why.find(before), end = why.find(after);
    REQUIRE(end != std::string::npos);
    return why.substr(begin + before.size(), end - begin - before.size());
  };
  const std::string needed = named(why_in(1, 60));
  const int64_t bytes = parse_bytes(needed, "test");
  // Less than the states of all layouts, of some, and of none; with and without time.
  for (double share : {0.1, 0.5, 0.8, 0.97})
    for (double timeout : {60.0, 0.0})
      CHECK(named(why_in(int64_t(share * double(bytes)), timeout)) == needed);
  for (double timeout : {60.0, 0.0}) CHECK(why_in(bytes, timeout) == "");
}

TEST_CASE("as many steps are planned for ten times the devices") {
  auto own = Deployer::on_mesh({.verbose = false}, redco::mesh::make_imagined_mesh({}));
  TracedProgram program = program_of(models[0], own);
  for (const char* text : {"125x H100-80G:8, ib 400G", "1250x H100-80G:8, ib 400G"}) {
    CAPTURE(text);
    StepPlan found = plan_step(program.options, program.examples, ClusterSpec::from_text(text),
                               {.per_device_batch_size = 1, .n_layouts = 1000});
    CHECK(found.layouts.size() == 51);
    CHECK(found.n_traced == 37);  // with one micro-batch, ZeRO 2 does what ZeRO 1 does
  }
}

TEST_CASE("layouts that cannot be among those shown are not tried") {
  auto own = Deployer::on_mesh({.verbose = false}, redco::mesh::make_imagined_mesh({}));
  TracedProgram program = program_of(models[0], own);
  ClusterSpec cluster = ClusterSpec::from_text("5x H100-80G:8, ib 400G");
  // Five shards cannot share eight heads, so that each computes all of them.
  PlanOptions options{.per_device_batch_size = 1 << 13, .n_layouts = 1000};
  StepPlan all = plan_step(program.options, program.examples, cluster, options);
  options.n_layouts = 3;
  StepPlan few = plan_step(program.options, program.examples, cluster, options);
  CHECK(all.n_traced == 37);
  CHECK(few.n_traced == 21);
  auto shown = [](const StepPlan& plan) {
    std::vector<std::string> texts;
    for (const PlannedLayout& each : plan.layouts)
      if (!each.is_asked && texts.size() < 3)
        texts.push_back(text_of(each.collectives) + " " + std::to_string(each.seconds));
    return texts;
  };
  CHECK(shown(few) == shown(all));
}

TEST_CASE("layouts over several hosts have groups of copies within a host") {
  auto own = Deployer::on_mesh({.verbose = false}, redco::mesh::make_imagined_mesh({}));
  TracedProgram program = program_of(models[1], own);
  ClusterSpec cluster = ClusterSpec::from_text("2x A100-80G:2, eth 10G");
  PlanOptions options{.per_device_batch_size = 2,
                      .zero = 3,
                      .zero_group = zero_group_of_host,
                      .tries_sequence_parallel = false,
                      .max_model_shards = 1,
                      .n_layouts = 100};
  StepPlan found = plan_step(program.options, program.examples, cluster, options);
  std::map<std::pair<int64_t, int64_t>, int> n;
  for (const PlannedLayout& layout : found.layouts) {
    ++n[{layout.zero, layout.zero_group}];
    CHECK(layout.is_asked == (layout.zero == 3 && layout.zero_group == 2));
  }
  using Key = std::pair<int64_t, int64_t>;
  CHECK(n == std::map<Key, int>{{{0, 4}, 1},
                                {{1, 2}, 1},
                                {{1, 4}, 1},
                                {{2, 2}, 1},
                                {{2, 4}, 1},
                                {{3, 2}, 1},
                                {{3, 4}, 1}});
  options.tries_zero = false;
  CHECK(plan_step(program.options, program.examples, cluster, options).layouts.size() == 2);
  options.zero_group = 3;
  CHECK_THROWS_WITH_AS(plan_step(program.options, program.examples, cluster, options),
                       "plan: zero_group = 3 does not divide the 4 copies of the model", Error);
}

TEST_CASE("weights that the model shards cannot split are told") {
  auto own = Deployer::on_mesh({.verbose = false}, redco::mesh::make_imagined_mesh({}));
  TracedProgram program = program_of(models[0], own);  // eight heads
  ClusterSpec cluster = ClusterSpec::from_text("1x A100-80G:16");
  PlanOptions options{.per_device_batch_size = 1,
                      .n_model_shards = 16,
                      .tries_model_shards = false,
                      .tries_sequence_parallel = false};
  options.global_batch_size = 1;
  StepPlan found = plan_step(program.options, program.examples, cluster, options);
  REQUIRE(found.layouts.size() == 1);
  std::string notes;
  for (const std::string& note : found.layouts[0].notes) notes += note + "\n";
  CHECK(notes.find("each of 16 model shards holds 1 weight of 16.0 KiB, 3 ") != std::string::npos);
  CHECK(notes.find("% of the parameters: ") != std::string::npos);
}

TEST_CASE("the timeline of a step has its peak, and each kind") {
  auto own = Deployer::on_mesh({.verbose = false}, redco::mesh::make_imagined_mesh({}));
  TracedProgram program = program_of(models[0], own);
  ClusterSpec cluster = ClusterSpec::from_text("1x A100-80G:1");
  PlanOptions options{.per_device_batch_size = 2, .has_timelines = true};
  StepPlan found = plan_step(program.options, program.examples, cluster, options);
  const PlannedLayout& layout = found.layouts.at(0);
  REQUIRE(layout.timeline.moments.size() == 120);
  CHECK(layout.timeline.seconds * 120 == doctest::Approx(layout.seconds).epsilon(0.01));
  int64_t most = 0;
  for (const auto& moment : layout.timeline.moments) {
    int64_t sum = 0;
    for (const auto& [kind, bytes] : moment) {
      CHECK(bytes >= 0);
      sum += bytes;
    }
    most = std::max(most, sum);
    CHECK(moment.at("parameters") == layout.memory.at("parameters"));
  }
  CHECK(most == layout.allocated);
}
