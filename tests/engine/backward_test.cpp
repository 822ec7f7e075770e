// Gradients of parameters that are cast for the loss: when they arrive, and what is in memory until
// then.
#include "../../engine/train/step/backward.h"
#include "../../engine/mesh/imagined.h"
#include "../../engine/plan/cost/peak.h"
#include "../../engine/plan/trace/step_trace.h"

#include <redco/nn.h>
#include <redco/trainer.h>

#include <ATen/record_function.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace redco;

namespace {

// Counts the gradients that are accumulated before the last product of each "backward".
class GradientClock {
 public:
  GradientClock() {
    current = this;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(on_begin).scopes(
        {at::RecordScope::USER_SCOPE, at::RecordScope::FUNCTION,
         at::RecordScope::BACKWARD_FUNCTION}));
  }
  ~GradientClock() { at::removeCallback(handle_); }
  GradientClock(const GradientClock&) = delete;
  GradientClock& operator=(const GradientClock&) = delete;

  double share_before_last_product() const { return double(before_product_) / double(n_); }
  int64_t n_gradients() const { return n_; }

 private:
  static std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& call) {
    GradientClock& clock = *current;
    auto is = [&](const char* name) { return std::strcmp(call.name(), name) == 0; };
    if (is("backward")) clock.n_ = clock.before_product_ = 0;
    if (is("aten::mm")) clock.before_product_ = clock.n_;
    clock.n_ += int64_t(is("torch::autograd::AccumulateGrad"));
    return nullptr;
  }

  static thread_local GradientClock* current;
  at::CallbackHandle handle_;
  int64_t n_ = 0, before_product_ = 0;
};
thread_local GradientClock* GradientClock::current = nullptr;

constexpr int64_t width = 1024, vocabulary = 4096, length = 4, n_layers = 24;

Tree weights_of_layers() {
  auto weight = [](at::IntArrayRef sizes) { return at::empty(sizes); };
  Tree::Dict params{{"embedding", weight({vocabulary, width})}};
  for (int64_t i = 0; i < n_layers; ++i)
    params["h." + std::to_string(i)] = Tree::Dict{{"up", weight({4 * width, width})},
                                                  {"down", weight({width, 4 * width})},
                                                  {"a", weight({8, width})},
                                                  {"b", weight({width, 8})}};
  return params;
}

// The embedding is tied to the output; "a" and "b" are an adapter.
Loss loss_of_layers(at::Generator, const TrainState&, const Tree& params, const Tree& batch, bool) {
  at::Tensor ids = batch.at("ids").tensor(), embedding = params.at("embedding").tensor();
  at::Tensor x = at::embedding(embedding, ids);
  for (int64_t i = 0; i < n_layers; ++i) {
    const Tree& layer = params.at("h." + std::to_string(i));
    auto weight = [&](const char* name) { return layer.at(name).tensor(); };
    at::Tensor y = at::linear(at::gelu(at::linear(x, weight("up"))), weight("down"));
    x = x + y + at::linear(at::linear(x, weight("a")), weight("b"));
  }
  return {linear_cross_entropy(x, embedding, ids)};
}

// All weights are cast and transposed by the script before it uses the first.
Loss loss_cast_first(at::Generator rng, const TrainState& state, const Tree& params,
                     const Tree& batch, bool is_training) {
  Tree converted = map_tensors(params, [](const std::string&, const at::Tensor& weight) {
    return weight.to(at::kBFloat16).t().contiguous().t();
  });
  return loss_of_layers(std::move(rng), state, converted, batch, is_training);
}

struct Variant {
  std::string name;
  int64_t n_accumulated = 1;
  bool has_autocast = false, trains_adapters_only = false, has_own_step = false;
  LossFn loss = loss_of_layers;
};

const std::vector<Variant> variants = {{.name = "plain"},
                                       {.name = "accumulation", .n_accumulated = 2},
                                       {.name = "autocast", .has_autocast = true},
                                       {.name = "adapters", .trains_adapters_only = true}};

struct Backward {
  double share;   // of the gradients, accumulated before the last product
  int64_t bytes;  // the most that exists in the step beyond what exists before it
};

Backward backward_of(const Variant& variant, at::ScalarType dtype, plan::TracedLayout layout) {
  auto own = Deployer::on_mesh({.verbose = false}, redco::mesh::make_imagined_mesh({}));
  auto optimizer = sgd({.learning_rate = 0.01});
  if (variant.trains_adapters_only)
    optimizer = freeze(optimizer, [](const std::string& name, const at::Tensor&) {
      return !name.ends_with(".a") && !name.ends_with(".b");
    });
  TrainerOptions options{.deployer = own,
                         .params = weights_of_layers(),
                         .loss_fn = variant.loss,
                         .optimizer = optimizer};
  if (variant.has_autocast && dtype != at::kFloat)
    options.autocast_dtype = dtype;
  else
    options.compute_dtype = dtype;
  if (variant.has_own_step)
    options.train_step_fn = [](at::Generator rng, Trainer& trainer, const Tree& batch) -> Tree {
      auto [loss, gradients] = trainer.value_and_grad([&](const Tree& params) {
        return loss_of_layers(rng, trainer.state(), params, batch, true).loss;
      });
      return Tree::Dict{{"loss", loss}, {"norm", trainer.apply_gradients(gradients)}};
    };
  Dataset examples{
      64, [](const std::vector<int64_t>& indices) -> Tree {
        return Tree::Dict{{"ids", at::zeros({int64_t(indices.size()), length}, at::kLong)}};
      }};
  layout.n_accumulated = variant.n_accumulated;
  GradientClock clock;
  plan::StepTrace trace = trace_step({std::move(options), std::move(examples)}, layout);
  CHECK(clock.n_gradients() == (variant.trains_adapters_only ? 2 * n_layers : 4 * n_layers + 1));
  int64_t before = 0;
  for (int64_t i = 0; i < trace.step.log.n_before; ++i)
    before += trace.step.log.allocations[size_t(i)].bytes;
  return {clock.share_before_last_product(), peak_of(trace.step).bytes - before};
}

}  // namespace

TEST_CASE("gradients in 16 bits arrive, and are freed, while backward runs") {
  int64_t copies = 0;  // bytes of all parameters in 16 bits
  for (const auto& [name, param] : named_tensors(weights_of_layers())) copies += 2 * param.numel();
  for (const Variant& variant : variants)
    for (redco::mesh::MeshSize mesh : {redco::mesh::MeshSize{1, 1}, redco::mesh::MeshSize{16, 1},
                                       redco::mesh::MeshSize{1, 2}, redco::mesh::MeshSize{16, 2}})
      for (int64_t zero = 0; zero <= (mesh.zero > 1 ? 3 : 0); ++zero) {
        CAPTURE(variant.name);
        CAPTURE(mesh.zero);
        CAPTURE(mesh.model);
        CAPTURE(zero);
        plan::TracedLayout layout{.mesh = mesh, .zero = zero, .per_device_batch_size = 1};
        Backward in_float = backward_of(variant, at::kFloat, layout);
        Backward in_16_bits = backward_of(variant, at::kBFloat16, layout);
        CHECK(in_16_bits.share >= 0.9);
        CHECK(in_16_bits.share == in_float.share);
        // With ZeRO 3 the copies are of this process's parts. Otherwise they are whole, and add to
        // the peak unless they are freed before gradients of twice their size have come.
        bool adds_copies =
            variant.trains_adapters_only || (zero == 0 ? variant.n_accumulated > 1 : zero < 3);
        int64_t parts = mesh.model * (zero == 3 ? mesh.zero : 1);
        // Model shards have the small matrices "a" and "b" whole.
        const int64_t small_copies = mesh.model > 1 ? n_layers * 2 * 8 * width * 2 : 0;
        CHECK(in_16_bits.bytes <=
              in_float.bytes + (adds_copies ? copies / parts : 0) + small_copies);
      }
}

TEST_CASE("conversions by the script come as early as those of the Trainer") {
  const Variant variant{.name = "cast by the script", .loss = loss_cast_first};
  for (int64_t zero = 0; zero <= 3; ++zero) {
    CAPTURE(zero);
    plan::TracedLayout layout{.mesh = {16, 1}, .zero = zero, .per_device_batch_size = 1};
    CHECK(backward_of(variant, at::kFloat, layout).share >= 0.9);
  }
}

TEST_CASE("value_and_grad sends gradients that ZeRO splits while backward runs") {
  const Variant variant{.name = "a step of one's own", .has_own_step = true};
  for (int64_t zero : {2, 3})
    for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      CAPTURE(zero);
      CAPTURE(dtype);
      plan::TracedLayout layout{.mesh = {16, 1}, .zero = zero, .per_device_batch_size = 1};
      Backward own = backward_of(variant, dtype, layout);
      CHECK(own.share >= 0.9);
      CHECK(own.bytes <= backward_of(variants[0], dtype, layout).bytes);
    }
}
