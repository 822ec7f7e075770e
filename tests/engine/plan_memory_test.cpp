// The memory of a planned step against what LibTorch's allocator is asked for in the real one.
#include "processes.h"
#include "thread_mesh.h"

#include "../../engine/mesh/imagined.h"
#include "../../engine/plan/cost/peak.h"
#include "../../engine/plan/trace/step_trace.h"

#include <redco/nn.h>
#include <redco/plan.h>
#include <redco/sharding.h>
#include <redco/trainer.h>

#include <c10/core/CPUAllocator.h>
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>

using namespace redco;

namespace {

// Bytes of tensors that exist, and the most since `most` was set.
std::atomic<int64_t> alive = 0, most = 0;
constexpr size_t header = 64;  // holds the size, and keeps the alignment

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::kCPU};
    char* block =
        static_cast<char*>(std::aligned_alloc(header, (bytes + 2 * header - 1) / header * header));
    TORCH_CHECK(block != nullptr, "no memory for ", bytes, " bytes");
    std::memcpy(block, &bytes, sizeof bytes);
    alive += int64_t(bytes);
    if (alive > most) most = alive.load();
    return {block + header, block + header, release, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return release; }
  void copy_data(void* to, const void* from, size_t n) const override { std::memcpy(to, from, n); }

 private:
  static void release(void* data) {
    if (data == nullptr) return;
    size_t bytes = 0;
    char* block = static_cast<char*>(data) - header;
    std::memcpy(&bytes, block, sizeof bytes);
    alive -= int64_t(bytes);
    std::free(block);
  }
};

constexpr int64_t width = 256, n_rows = 32;

Tree perceptron() {
  return Tree::Dict{{"up", at::full({4 * width, width}, 0.01f)},
                    {"scale", at::ones({width})},
                    {"shift", at::zeros({width})},
                    {"down", at::full({width, 4 * width}, 0.01f)}};
}

// A mutation: the step keeps a tensor until the next one.
std::atomic<bool> keeps_a_tensor = false;
at::Tensor kept;

// Whether the loss is that of a language model with one matrix for the embedding and the output, of
// which backward adds two gradients.
std::atomic<bool> is_tied = false;

Loss perceptron_loss(at::Generator, const TrainState&, const Tree& params, const Tree& batch,
                     bool) {
  auto weight = [&](const char* name) { return params.at(name).tensor(); };
  if (is_tied) {
    at::Tensor ids = batch.at("x").tensor().select(1, 0).to(at::kLong);
    at::Tensor y = at::linear(at::embedding(weight("up"), ids), weight("down").t());
    y = at::layer_norm(at::linear(y, weight("down")), {width}, weight("scale"), weight("shift"));
    return {linear_cross_entropy(y, weight("up"), ids)};
  }
  at::Tensor x = batch.at("x").tensor();
  at::Tensor y = at::linear(at::relu(at::linear(x, weight("up"))), weight("down"));
  if (keeps_a_tensor) kept = at::zeros({1 << 20});
  y = at::layer_norm(x + y, {width}, weight("scale"), weight("shift"));
  return {at::softmax(y, -1).square().mean()};
}

struct Step {
  std::shared_ptr<Optimizer> optimizer;
  int64_t n_accumulated;
};

plan::TracedProgram program_of(const Step& step, std::shared_ptr<Deployer> deployer) {
  TrainerOptions options{.deployer = std::move(deployer),
                         .params = perceptron(),
                         .loss_fn = perceptron_loss,
                         .optimizer = step.optimizer};
  Dataset examples{4 * n_rows, [](const std::vector<int64_t>& indices) -> Tree {
                     return Tree::Dict{{"x", at::ones({int64_t(indices.size()), width})}};
                   }};
  return {std::move(options), std::move(examples)};
}

// The most that exists at one time of step 2, beyond what exists before it.
int64_t measured(const Step& step) {
  // No plan has the scratch memory of oneDNN, which LibTorch 2.15 takes from the allocator.
  at::globalContext().setUserEnabledMkldnn(false);
  int64_t result = 0;
  testing::on_threads({1, 1, 1, 1, 1, 1}, [&](const std::shared_ptr<const Mesh>& given) {
    auto mesh = std::const_pointer_cast<Mesh>(given);
    plan::TracedProgram program = program_of(step, Deployer::on_mesh({.verbose = false}, mesh));
    program.options.accumulate_grad_batches = step.n_accumulated;
    Trainer trainer(std::move(program.options));
    Dataset examples = head(program.examples, n_rows * step.n_accumulated);
    trainer.train_step(examples, n_rows);
    most = alive.load();
    int64_t before = alive;
    trainer.train_step(examples, n_rows);
    result = most - before;
  });
  return result;
}

int64_t planned(const Step& step) {
  auto own = Deployer::on_mesh({.verbose = false}, redco::mesh::make_imagined_mesh({}));
  plan::StepTrace trace = trace_step(
      program_of(step, own),
      {.mesh = {}, .per_device_batch_size = n_rows, .n_accumulated = step.n_accumulated});
  int64_t before = 0;
  for (const plan::Allocation& each : trace.step.log.allocations)
    if (each.kind == plan::MemoryKind::parameters || each.kind == plan::MemoryKind::states)
      before += each.bytes;
  plan::Peak peak = plan::peak_of(trace.step);
  int64_t sum = 0;
  for (int64_t bytes : peak.kinds) sum += bytes;
  CHECK(sum == peak.bytes);
  return peak.bytes - before;
}

}  // namespace

TEST_CASE("a planned step needs the memory of the step") {
  static CountingAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/255);
  for (int64_t n_accumulated : {1, 2})
    for (const std::shared_ptr<Optimizer>& optimizer :
         {sgd({.learning_rate = 0.01}), adamw({.learning_rate = 0.01})}) {
      CAPTURE(n_accumulated);
      Step step{optimizer, n_accumulated};
      int64_t expected = measured(step);
      CHECK(expected > n_rows * 4 * width * 4);
      // Kernels make scalars, such as the exponent of a power, that no schema has.
      CHECK(std::abs(planned(step) - expected) <= 64);
      keeps_a_tensor = true;
      CHECK(measured(step) - expected > 64);  // so that a missing release fails above
      keeps_a_tensor = false;
      kept.reset();
    }
}

TEST_CASE("two gradients of a weight are added as on one process") {
  static CountingAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/255);
  is_tied = true;
  for (int64_t n_accumulated : {1, 2}) {
    CAPTURE(n_accumulated);
    Step step{sgd({.learning_rate = 0.01}), n_accumulated};
    CHECK(std::abs(planned(step) - measured(step)) <= 64);
  }
  is_tied = false;
}

TEST_CASE("zero holds few whole gradients at a time") {
  constexpr int64_t n_layers = 64, n_devices = 8;
  constexpr int64_t layer_bytes = 1024 * 1024 * 4;
  Tree::Dict layers;
  for (int64_t i = 0; i < n_layers; ++i)
    layers["layer" + std::to_string(i)] = at::empty({1024, 1024}, at::kMeta);
  auto own = Deployer::on_mesh({.verbose = false}, redco::mesh::make_imagined_mesh({}));
  plan::TracedProgram program{
      {.deployer = own,
       .params = layers,
       .loss_fn =
           [](at::Generator, const TrainState&, const Tree& params, const Tree& batch, bool) {
             at::Tensor x = batch.at("x").tensor();
             for (int64_t i = 0; i < n_layers; ++i)
               x = at::linear(x, params.at("layer" + std::to_string(i)).tensor());
             return Loss{x.square().mean()};
           },
       .optimizer = sgd({.learning_rate = 0.01})},
      {n_devices, [](const std::vector<int64_t>& indices) -> Tree {
         return Tree::Dict{{"x", at::ones({int64_t(indices.size()), 1024})}};
       }}};
  auto peak = [&](int64_t zero) {
    return plan::peak_of(trace_step(program, {.mesh = {.zero = n_devices}, .zero = zero}).step)
        .bytes;
  };
  // Gradients and parameters move in buckets of 25 MiB. At most nine exist at a time: parts, what
  // is gathered, Gloo's copy and the result of two, and what its last work holds.
  int64_t parameters = n_layers * layer_bytes, buckets = 9 * (25 << 20);
  CHECK(peak(0) > 2 * parameters);
  CHECK(peak(2) < parameters + parameters / n_devices + buckets);
  CHECK(peak(3) < 2 * parameters / n_devices + buckets);
}

namespace {

constexpr int64_t n_layers_of_deep = 8, n_words = 8192, n_ids = 16;

// A language model whose gradients fill several buckets; one of them is larger than a bucket. It
// needs most where two gradients of the tied weights are added or, untied, where they are gathered.
plan::TracedProgram deep_program(std::shared_ptr<Deployer> deployer, bool is_tied_too) {
  Tree::Dict params{{"words", at::full({n_words, 4 * width}, 0.01f)}};
  for (int64_t i = 0; i < n_layers_of_deep; ++i)
    params["layer" + std::to_string(i)] = at::full({4 * width, 4 * width}, 0.001f);
  auto loss = [=](at::Generator, const TrainState&, const Tree& given, const Tree& batch, bool) {
    at::Tensor words = given.at("words").tensor(), ids = batch.at("ids").tensor();
    at::Tensor x = is_tied_too ? at::embedding(words, ids) : batch.at("x").tensor();
    for (int64_t i = 0; i < n_layers_of_deep; ++i)
      x = x + at::linear(x, given.at("layer" + std::to_string(i)).tensor());
    return Loss{linear_cross_entropy(x, words, ids)};
  };
  return {{.deployer = std::move(deployer),
           .params = params,
           .loss_fn = loss,
           .optimizer = adamw({.learning_rate = 0.01})},
          {4 * n_ids, [](const std::vector<int64_t>& indices) -> Tree {
             auto n = int64_t(indices.size());
             return Tree::Dict{{"ids", at::ones({n}, at::kLong)}, {"x", at::ones({n, 4 * width})}};
           }}};
}

}  // namespace

TEST_CASE("a planned step of two processes needs the memory of the step, with that of Gloo") {
  static CountingAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/255);
  auto own = Deployer::on_mesh({.verbose = false}, redco::mesh::make_imagined_mesh({}));
  in_processes({.n_processes = 2, .time_limit = std::chrono::seconds(240)}, [&](Mesh& given) {
    // The mesh belongs to in_processes.
    std::shared_ptr<Mesh> mesh(std::shared_ptr<Mesh>(), &given);
    using Case = std::pair<bool, int64_t>;
    for (auto [is_tied_too, zero] : {Case{true, 1}, {true, 3}, {false, 0}, {false, 2}}) {
      CAPTURE(is_tied_too);
      CAPTURE(zero);
      plan::StepTrace trace =
          trace_step(deep_program(own, is_tied_too),
                     {.mesh = {.zero = 2}, .zero = zero, .per_device_batch_size = n_ids});
      int64_t without = alive;
      auto deployer = Deployer::on_mesh({.zero = zero, .verbose = false}, mesh);
      Trainer trainer(std::move(deep_program(deployer, is_tied_too).options));
      Dataset examples = head(deep_program(deployer, is_tied_too).examples, 2 * n_ids);
      trainer.train_step(examples, n_ids);
      most = alive.load();
      trainer.train_step(examples, n_ids);
      int64_t expected = most - without;
      // The real run keeps a number of the step before.
      CHECK(expected - plan::peak_of(trace.step).bytes == sizeof(int64_t));
    }
  });
}

TEST_CASE("collectives hold what their library holds") {
  constexpr int64_t n_ranks = 4, kib = 1 << 10;
  using Start = std::function<std::unique_ptr<Pending>(Group&, const at::Tensor&)>;
  using Bytes = std::array<int64_t, 2>;
  // KiB alive after the start of a collective of 4 KiB, and after its wait.
  auto held = [](plan::Library library, const Start& start) {
    Bytes bytes{};
    auto loss = [&](at::Generator, const TrainState&, const Tree& params, const Tree&, bool) {
      at::Tensor weight = params.at("weight").tensor();
      Group& group = mesh_of(weight)->group(Mesh::dp);
      auto in_step = [](int64_t size) { return at::empty({size}, at::device(at::kMeta)); };
      group.all_reduce(in_step(1), ReduceOp::sum);
      int64_t before = *planned_bytes();
      at::Tensor given = in_step(kib).view({n_ranks, -1});
      std::unique_ptr<Pending> pending = start(group, given);
      given.reset();
      bytes[0] = *planned_bytes() - before;
      at::Tensor result = pending->wait();
      pending.reset();
      bytes[1] = *planned_bytes() - before;
      return Loss{weight.sum()};
    };
    auto own = Deployer::on_mesh({.verbose = false}, redco::mesh::make_imagined_mesh({}));
    plan::TracedProgram program{{.deployer = own,
                                 .params = Tree::Dict{{"weight", at::ones({1})}},
                                 .loss_fn = loss,
                                 .optimizer = sgd({.learning_rate = 0.01})},
                                {n_ranks, [](const std::vector<int64_t>& indices) -> Tree {
                                   return Tree::Dict{{"x", at::ones({int64_t(indices.size())})}};
                                 }}};
    trace_step(program, {.mesh = {.zero = n_ranks}, .library = library});
    for (int64_t& each : bytes) each = (each + kib / 2) / kib;
    return bytes;
  };
  Start gather = [](Group& group, const at::Tensor& given) {
    return group.start_all_gather(given);
  };
  Start scatter = [](Group& group, const at::Tensor& given) {
    return group.start_reduce_scatter(given, ReduceOp::sum);
  };
  using plan::Library;
  CHECK(held(Library::gloo, gather) == Bytes{20, 16});
  CHECK(held(Library::nccl, gather) == Bytes{20, 16});
  // 2 MiB of 16-bit floats: with the parts that arrive, or the own part of the sum.
  Start sum_by_parts = [](Group& group, const at::Tensor&) {
    auto options = at::device(at::kMeta).dtype(at::kBFloat16);
    return group.start_all_reduce(at::empty({1 << 20}, options), ReduceOp::sum);
  };
  CHECK(held(Library::gloo, sum_by_parts) == Bytes{4096, 2048});
  CHECK(held(Library::nccl, sum_by_parts) == Bytes{2560, 2048});
  // With Gloo, the rows of the three other ranks arrive and are then added up.
  CHECK(held(Library::gloo, scatter) == Bytes{7, 1});
  CHECK(held(Library::nccl, scatter) == Bytes{5, 1});
}
