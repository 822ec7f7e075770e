// compute_dtype = float16: a Trainer's loss is scaled, its gradients are not.
#include <redco/error.h>
#include <redco/trainer.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

using redco::Dataset;
using redco::Loss;
using redco::LossScale;
using redco::Trainer;
using redco::TrainerOptions;
using redco::TrainState;
using redco::Tree;

namespace {

// Examples 0 .. size - 1; an example is its number.
Dataset numbers(int64_t size) {
  return {size, [](const std::vector<int64_t>& indices) -> Tree {
            return Tree::Dict{{"x", at::tensor(indices).to(at::kFloat)}};
          }};
}

at::Tensor weight_of(const Tree& params) { return params.at("w").tensor(); }

// The loss is `factor(step)` times the sum of w, computed in params' type; its gradient is the
// factor everywhere.
TrainerOptions options(std::function<double(int64_t step)> factor) {
  TrainerOptions result;
  result.deployer = std::make_shared<redco::Deployer>(redco::DeployerOptions{.seed = 1});
  result.params = Tree::Dict{{"w", at::ones({3})}};
  result.compute_dtype = at::kHalf;
  result.loss_scale = LossScale{.scale = 1024};
  result.optimizer = redco::adam({.learning_rate = 0.5});
  result.loss_fn = [factor](at::Generator, const TrainState& state, const Tree& params, const Tree&,
                            bool) -> Loss {
    return {(weight_of(params) * factor(state.step)).sum().to(at::kFloat)};
  };
  return result;
}

}  // namespace

TEST_CASE("gradients that float16 cannot hold arrive") {
  TrainerOptions tiny = options([](int64_t) { return 1; });
  tiny.loss_scale.reset();
  tiny.optimizer = redco::sgd({.learning_rate = 1e9});
  // 1e-9, which is 0 in float16.
  tiny.loss_fn = [](at::Generator, const TrainState&, const Tree& params, const Tree&,
                    bool) -> Loss { return {weight_of(params).sum().to(at::kFloat) * 1e-9}; };
  Trainer trainer(tiny);
  trainer.train(numbers(4), 2);
  CHECK(trainer.step() == 2);
  CHECK(at::allclose(weight_of(trainer.state().params), at::full({3}, -1.0f), 0, 1e-2));
}

TEST_CASE("a step whose gradients are not finite changes nothing but the scale") {
  int64_t calls = 0;
  Trainer trainer(options([&](int64_t) { return ++calls == 2 ? 1e6 : 1; }));
  trainer.train(numbers(2), 2);
  CHECK(trainer.step() == 1);
  CHECK(trainer.state().loss_scale->good_steps == 1);
  at::Tensor before = weight_of(trainer.state().params).detach().clone();
  const Tree& state = trainer.state().opt_state;
  at::Tensor average = state.at("exp_avg").at("w").tensor().clone();

  trainer.train(numbers(2), 2);
  CHECK(trainer.step() == 1);
  CHECK(trainer.state().loss_scale->scale == 512);
  CHECK(trainer.state().loss_scale->good_steps == 0);
  CHECK(at::equal(weight_of(trainer.state().params), before));
  CHECK(at::equal(state.at("exp_avg").at("w").tensor(), average));
  CHECK(state.at("step").tensor().item<double>() == 1);

  trainer.train(numbers(2), 2);
  CHECK(trainer.step() == 2);
  CHECK(at::allclose(weight_of(trainer.state().params), before - 0.5));
}

TEST_CASE("2000 good steps double the scale") {
  TrainerOptions late = options([](int64_t) { return 1; });
  late.loss_scale = LossScale{.scale = 8, .good_steps = 1998};
  Trainer trainer(late);
  trainer.train(numbers(2), 2);
  CHECK(trainer.state().loss_scale->scale == 8);
  trainer.train(numbers(2), 2);
  CHECK(trainer.state().loss_scale->scale == 16);
  CHECK(trainer.state().loss_scale->good_steps == 0);
  trainer.set_train_state({.params = Tree::Dict{{"w", at::ones({3})}}});
  CHECK(trainer.state().loss_scale->scale == 65536);
}

TEST_CASE("a scale that is too large comes down by itself") {
  TrainerOptions high = options([](int64_t) { return 1; });
  high.loss_scale = LossScale{.scale = std::ldexp(1.0, 20)};
  Trainer trainer(high);
  trainer.fit({.train_examples = numbers(2), .per_device_batch_size = 2, .n_epochs = 8});
  CHECK(trainer.state().loss_scale->scale == 32768);
  CHECK(trainer.step() == 3);
  CHECK(at::allclose(weight_of(trainer.state().params), at::full({3}, -0.5f)));
}

TEST_CASE("gradients that are never finite end the training") {
  Trainer trainer(options([](int64_t) { return std::numeric_limits<double>::quiet_NaN(); }));
  CHECK_THROWS_WITH_AS(
      trainer.fit({.train_examples = numbers(2), .per_device_batch_size = 1, .n_epochs = 1000}),
      doctest::Contains("the gradients are not finite, however small the loss is made"),
      redco::Error);
  CHECK(trainer.step() == 0);
  CHECK(at::equal(weight_of(trainer.state().params), at::ones({3})));
}

TEST_CASE("micro-batches count by their weights, which float16 may not hold") {
  // Micro-batches of 3 examples and of 1: sum(n_i * mean_i) / sum(n_i), n in hundred thousands.
  for (bool is_half : {false, true}) {
    TrainerOptions weighted = options([](int64_t) { return 1; });
    weighted.optimizer = redco::sgd({.learning_rate = 1});
    weighted.compute_dtype = is_half ? at::kHalf : at::kFloat;
    if (!is_half) weighted.loss_scale.reset();
    weighted.accumulate_grad_batches = 2;
    weighted.loss_fn = [](at::Generator, const TrainState&, const Tree& params, const Tree& batch,
                          bool) -> Loss {
      at::Tensor x = batch.at("x").tensor();
      at::Tensor mean = (weight_of(params).sum() * x.to(weight_of(params).scalar_type())).mean();
      return {mean, at::full({}, 100'000.0 * double(x.numel()))};
    };
    Trainer trainer(weighted);
    trainer.train(numbers(4), 3);
    CAPTURE(is_half);
    CHECK(trainer.step() == 1);
    CHECK(at::allclose(weight_of(trainer.state().params), at::full({3}, 1 - 1.5f), 1e-3));
  }
}

TEST_CASE("a train_step_fn sees gradients without the scale, and its step may be left out") {
  int64_t calls = 0;
  TrainerOptions own = options([](int64_t) { return 1; });
  own.train_step_fn = [&](at::Generator, Trainer& trainer, const Tree&) -> Tree {
    double factor = ++calls == 1 ? 1e6 : 3;
    auto [loss, grads] = trainer.value_and_grad(
        [&](const Tree& params) { return (weight_of(params) * factor).sum().to(at::kFloat); });
    if (calls > 1) CHECK(at::equal(weight_of(grads), at::full({3}, 3.0f)));
    at::Tensor norm = trainer.apply_gradients(grads);
    CHECK(std::isfinite(norm.item<double>()) == (calls > 1));
    return Tree::Dict{{"loss", loss}};
  };
  Trainer trainer(own);
  trainer.train(numbers(2), 2);
  CHECK(trainer.step() == 0);
  CHECK(at::equal(weight_of(trainer.state().params), at::ones({3})));
  trainer.train(numbers(2), 2);
  CHECK(trainer.step() == 1);
  CHECK(at::allclose(weight_of(trainer.state().params), at::full({3}, 0.5f)));
}

TEST_CASE("what does not go with float16 is refused") {
  TrainerOptions wrong = options([](int64_t) { return 1; });
  wrong.loss_scale = LossScale{.scale = 0};
  CHECK_THROWS_WITH_AS(Trainer{wrong}, doctest::Contains("scale = 0 must be between"),
                       redco::Error);
  wrong.loss_scale = LossScale{};
  wrong.compute_dtype = at::kBFloat16;
  CHECK_THROWS_WITH_AS(Trainer{wrong}, doctest::Contains("BFloat16 needs none"), redco::Error);
  wrong = options([](int64_t) { return 1; });
  wrong.params["w"] = at::ones({3}, at::kHalf);
  CHECK_THROWS_WITH_AS(Trainer{wrong}, doctest::Contains("parameter 'w' is float16"), redco::Error);
}
