// D3 ... D16 are the defects of Redco that this project set out not to have.
#include <redco/error.h>
#include <redco/trainer.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>
#include <stdlib.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

using redco::Dataset;
using redco::Loss;
using redco::Trainer;
using redco::TrainerOptions;
using redco::TrainState;
using redco::Tree;

namespace {

// A folder of the test's own, gone at its end.
class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "redco-test-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

  std::vector<nlohmann::json> metrics() const {
    std::vector<nlohmann::json> lines;
    std::ifstream file(path_ + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

 private:
  std::string path_;
};

std::shared_ptr<redco::Deployer> deployer(std::string workdir = "") {
  return std::make_shared<redco::Deployer>(
      redco::DeployerOptions{.seed = 42, .workdir = std::move(workdir)});
}

// y = x w + b on ten points; `indices` of each batch are kept.
struct Regression {
  at::Tensor x = at::arange(20, at::kFloat).reshape({10, 2}) / 10 - 1;
  at::Tensor y = at::matmul(x, at::tensor({1.0f, -2.0f}).reshape({2, 1})) + 0.5;
  std::shared_ptr<std::vector<std::vector<int64_t>>> batches =
      std::make_shared<std::vector<std::vector<int64_t>>>();

  Dataset data(int64_t size = 10) const {
    return {size, [*this](const std::vector<int64_t>& indices) -> Tree {
              batches->push_back(indices);
              at::Tensor index = at::tensor(indices);
              return Tree::Dict{{"x", x.index_select(0, index)}, {"y", y.index_select(0, index)}};
            }};
  }

  static Tree params() { return Tree::Dict{{"w", at::full({2, 1}, 0.3f)}, {"b", at::zeros({1})}}; }

  static at::Tensor errors(const Tree& params, const Tree& batch) {
    return at::matmul(batch.at("x").tensor(), params.at("w").tensor()) + params.at("b").tensor() -
           batch.at("y").tensor();
  }

  static Loss loss(at::Generator, const TrainState&, const Tree& params, const Tree& batch, bool) {
    return {errors(params, batch).square().mean()};
  }
};

TrainerOptions options(std::shared_ptr<redco::Deployer> deployer = ::deployer()) {
  return {.deployer = std::move(deployer),
          .params = Regression::params(),
          .loss_fn = Regression::loss,
          .optimizer = redco::sgd({.learning_rate = 0.2})};
}

float difference(const Trainer& a, const Trainer& b) {
  float largest = 0;
  auto theirs = redco::named_tensors(b.state().params);
  for (const auto& [name, tensor] : redco::named_tensors(a.state().params)) {
    auto other = std::find_if(theirs.begin(), theirs.end(),
                              [&, n = name](const auto& entry) { return entry.first == n; });
    largest = std::max(largest, (tensor - other->second).abs().max().item<float>());
  }
  return largest;
}

}  // namespace

TEST_CASE("fit learns, uses every example of every epoch, and counts optimizer steps") {
  Folder folder;
  Regression regression;
  Trainer trainer(options(deployer(folder.path())));
  trainer.fit({.train_examples = regression.data(), .per_device_batch_size = 4, .n_epochs = 100});
  CHECK(trainer.step() == 300);
  CHECK(trainer.eval_loss(regression.data(), 10) < 1e-3);
  const auto& batches = *regression.batches;
  std::multiset<int64_t> first_epoch;
  for (int i = 0; i < 3; ++i) first_epoch.insert(batches[i].begin(), batches[i].end());
  CHECK(batches[2].size() == 2);
  CHECK(first_epoch.size() == 10);
  CHECK(std::set<int64_t>(first_epoch.begin(), first_epoch.end()).size() == 10);
  CHECK(batches[0] != batches[3]);

  auto lines = folder.metrics();
  REQUIRE(lines.size() == 300);
  CHECK(lines[0]["step"] == 0);
  CHECK(lines[299]["step"] == 299);
  CHECK(lines[0]["lr"] == 0.2);
  CHECK(lines[0]["loss"] > lines[299]["loss"]);
  CHECK(lines[0]["grad_norm"] > 0);
}

TEST_CASE("one step is the closed form") {
  Folder folder;
  Regression regression;
  Trainer trainer(options(deployer(folder.path())));
  trainer.train(regression.data(), 10);
  double w[2] = {0.3, 0.3}, b = 0, gw[2] = {}, gb = 0, loss = 0;
  for (int i = 0; i < 10; ++i) {
    double x[2] = {2 * i / 10.0 - 1, (2 * i + 1) / 10.0 - 1};
    double error = x[0] * w[0] + x[1] * w[1] + b - (x[0] - 2 * x[1] + 0.5);
    loss += error * error / 10;
    for (int k = 0; k < 2; ++k) gw[k] += 2 * error * x[k] / 10;
    gb += 2 * error / 10;
  }
  const Tree& params = trainer.state().params;
  for (int k = 0; k < 2; ++k)
    CHECK(params.at("w").tensor()[k].item<double>() == doctest::Approx(w[k] - 0.2 * gw[k]));
  CHECK(params.at("b").tensor().item<double>() == doctest::Approx(b - 0.2 * gb));
  auto line = folder.metrics().at(0);
  CHECK(line["loss"] == doctest::Approx(loss));
  CHECK(line["grad_norm"] == doctest::Approx(std::sqrt(gw[0] * gw[0] + gw[1] * gw[1] + gb * gb)));
}

TEST_CASE(
    "D3: with accumulation the logged lr is the applied one and the schedule ends with the run") {
  Folder folder;
  Regression regression;
  auto the_deployer = deployer(folder.path());
  redco::Schedule schedule = the_deployer->get_lr_schedule_fn({.train_size = 10,
                                                               .per_device_batch_size = 2,
                                                               .n_epochs = 2,
                                                               .learning_rate = 0.5,
                                                               .accumulate_grad_batches = 2,
                                                               .warmup_steps = 2});
  TrainerOptions with_schedule = options(the_deployer);
  // The gradient is 1 everywhere: the parameter moves by the learning rate itself.
  with_schedule.params = Tree::Dict{{"w", at::zeros({1})}};
  with_schedule.loss_fn = [](at::Generator, const TrainState&, const Tree& params, const Tree&,
                             bool) -> Loss { return {params.at("w").tensor().sum()}; };
  with_schedule.optimizer = redco::sgd({.learning_rate = schedule});
  with_schedule.accumulate_grad_batches = 2;
  std::vector<double> moved;
  Trainer trainer(with_schedule);
  trainer.fit({.train_examples = regression.data(), .per_device_batch_size = 2, .n_epochs = 2});
  auto lines = folder.metrics();
  REQUIRE(lines.size() == 6);
  double sum = 0;
  for (int i = 0; i < 6; ++i) {
    CHECK(lines[i]["lr"] == doctest::Approx(schedule(i)));
    sum += lines[i]["lr"].get<double>();
  }
  CHECK(lines[0]["lr"] == 0);
  CHECK(lines[2]["lr"] == 0.5);
  CHECK(trainer.state().params.at("w").tensor().item<double>() == doctest::Approx(-sum));
  CHECK(trainer.step() == 6);
  CHECK(schedule(trainer.step()) == 0);
}

TEST_CASE("D4: accumulation gives the same step, token-weighted losses included") {
  Regression regression;
  // Example i has i tokens that count; the loss is their mean, as of a masked cross-entropy.
  auto token_loss = [](at::Generator, const TrainState&, const Tree& params, const Tree& batch,
                       bool) -> Loss {
    at::Tensor tokens = (batch.at("x").tensor().select(1, 0) + 1) * 5 + 1;
    at::Tensor sum = (Regression::errors(params, batch).square().squeeze(1) * tokens).sum();
    return {sum / tokens.sum(), tokens.sum().to(at::kLong)};
  };
  for (bool by_tokens : {false, true}) {
    CAPTURE(by_tokens);
    Folder whole_folder;
    TrainerOptions whole_options = options(deployer(whole_folder.path()));
    if (by_tokens) whole_options.loss_fn = token_loss;
    Trainer whole(whole_options);
    whole.fit({.train_examples = regression.data(), .per_device_batch_size = 8, .n_epochs = 2});
    auto expected = whole_folder.metrics();
    for (int64_t k : {2, 4, 8}) {
      CAPTURE(k);
      for (bool by_global_batch : {false, true}) {
        Folder folder;
        TrainerOptions split_options = options(deployer(folder.path()));
        if (by_tokens) split_options.loss_fn = token_loss;
        redco::FitOptions fit{
            .train_examples = regression.data(), .per_device_batch_size = 8 / k, .n_epochs = 2};
        if (by_global_batch)
          fit.global_batch_size = 8;
        else
          split_options.accumulate_grad_batches = k;
        Trainer split(split_options);
        split.fit(fit);
        CHECK(split.step() == 4);
        CHECK(difference(whole, split) < 1e-6);
        auto lines = folder.metrics();
        REQUIRE(lines.size() == expected.size());
        for (size_t i = 0; i < lines.size(); ++i) {
          CHECK(lines[i]["loss"] == doctest::Approx(expected[i]["loss"].get<double>()));
          CHECK(lines[i]["grad_norm"] == doctest::Approx(expected[i]["grad_norm"].get<double>()));
        }
      }
    }
    // And the evaluation: the mean over everything, whatever the batches.
    CHECK(whole.eval_loss(regression.data(), 3) ==
          doctest::Approx(whole.eval_loss(regression.data(), 10)));
  }
}

TEST_CASE("D5: the metrics of a step are written when the next one is under way") {
  Folder folder;
  Regression regression;
  TrainerOptions watching = options(deployer(folder.path()));
  std::vector<size_t> written;
  watching.loss_fn = [&](at::Generator rng, const TrainState& state, const Tree& params,
                         const Tree& batch, bool is_training) {
    written.push_back(folder.metrics().size());
    return Regression::loss(rng, state, params, batch, is_training);
  };
  Trainer(watching).train(regression.data(), 2);
  CHECK(written == std::vector<size_t>{0, 0, 1, 2, 3});
  CHECK(folder.metrics().size() == 5);
}

TEST_CASE("D6: float16 trains, for its loss is scaled") {
  Folder folder;
  Regression regression;
  TrainerOptions half = options(deployer(folder.path()));
  half.compute_dtype = at::kHalf;
  half.loss_fn = [](at::Generator, const TrainState&, const Tree& params, const Tree& batch,
                    bool) -> Loss {
    at::Tensor x = batch.at("x").tensor().to(at::kHalf);
    at::Tensor y = at::matmul(x, params.at("w").tensor()) + params.at("b").tensor();
    return {(y.to(at::kFloat) - batch.at("y").tensor()).square().mean()};
  };
  Trainer trainer(half);
  trainer.fit({.train_examples = regression.data(), .per_device_batch_size = 4, .n_epochs = 100});
  CHECK(trainer.eval_loss(regression.data(), 10) < 1e-3);
  CHECK(folder.metrics().at(0)["loss_scale"] == 65536);
}

TEST_CASE("D7: a set smaller than a batch is used, an empty one is an error that says so") {
  Folder folder;
  Regression regression;
  Trainer trainer(options(deployer(folder.path())));
  trainer.fit({.train_examples = regression.data(3),
               .per_device_batch_size = 8,
               .eval_examples = regression.data(2)});
  CHECK(trainer.step() == 1);
  CHECK(std::isfinite(trainer.eval_loss(regression.data(2), 8)));
  CHECK_THROWS_WITH_AS(trainer.train(Dataset{}, 8), "training: the set of examples is empty",
                       redco::Error);
  CHECK_THROWS_WITH_AS(trainer.eval_loss(Dataset{}, 8), "eval_loss: the set of examples is empty",
                       redco::Error);
  CHECK_THROWS_WITH_AS(trainer.fit({.train_examples = regression.data(),
                                    .per_device_batch_size = 8,
                                    .eval_examples = Dataset{}}),
                       "fit: eval_examples: the set of examples is empty", redco::Error);
  CHECK(trainer.step() == 1);
}

TEST_CASE("D11: a run resumed without optimizer state keeps its place in the schedule") {
  Folder folder;
  Regression regression;
  TrainerOptions resumed = options(deployer(folder.path()));
  resumed.step = 5;
  resumed.optimizer = redco::adamw({.learning_rate = redco::linear_schedule(0, 1, 0, 0, 10)});
  Trainer trainer(resumed);
  trainer.train(regression.data(), 10);
  auto line = folder.metrics().at(0);
  CHECK(line["step"] == 5);
  CHECK(line["lr"] == 0.5);
  CHECK(trainer.step() == 6);
}

TEST_CASE("D13: a second Deployer doubles no lines") {
  struct Lines : redco::Console {
    std::vector<std::string> lines;
    void line(std::string_view text) override { lines.emplace_back(text); }
    void progress(const redco::ProgressState&) override {}
  };
  auto console = std::make_shared<Lines>();
  redco::Deployer first({.seed = 1, .console = console}), second({.seed = 1, .console = console});
  console->lines.clear();
  first.log_info("one line");
  CHECK(console->lines.size() == 1);
  second.log_info("another line");
  CHECK(console->lines.size() == 2);
}

TEST_CASE("D15: bfloat16 casts floating-point tensors of params and batch, and nothing else") {
  Regression regression;
  TrainerOptions mixed = options();
  mixed.compute_dtype = at::kBFloat16;
  mixed.params["positions"] = at::arange(3);
  mixed.params["scale"] = 2.0;
  mixed.optimizer = redco::adamw({.learning_rate = 0.1});
  mixed.loss_fn = [](at::Generator, const TrainState& state, const Tree& params, const Tree& batch,
                     bool) -> Loss {
    CHECK((params.at("w").tensor().scalar_type() == at::kBFloat16));
    CHECK((params.at("positions").tensor().scalar_type() == at::kLong));
    CHECK(at::equal(params.at("positions").tensor(), at::arange(3)));
    CHECK(params.at("scale").as<double>() == 2);
    CHECK((batch.at("x").tensor().scalar_type() == at::kBFloat16));
    CHECK((state.params.at("w").tensor().scalar_type() == at::kFloat));
    at::Tensor y =
        at::matmul(batch.at("x").tensor(), params.at("w").tensor()) + params.at("b").tensor();
    return {(y.to(at::kFloat) - batch.at("y").tensor()).square().mean()};
  };
  mixed.accumulate_grad_batches = 2;
  Trainer trainer(mixed);
  double before = trainer.eval_loss(regression.data(), 10);
  trainer.fit({.train_examples = regression.data(), .per_device_batch_size = 5, .n_epochs = 50});
  CHECK(trainer.eval_loss(regression.data(), 10) < before / 20);
  for (const auto& [name, tensor] : redco::named_tensors(trainer.state().opt_state))
    CHECK((tensor.scalar_type() == at::kFloat));
  // The masters keep what bfloat16 can't hold.
  at::Tensor w = trainer.state().params.at("w").tensor().detach();
  CHECK((w.scalar_type() == at::kFloat));
  CHECK_FALSE(at::equal(w, w.to(at::kBFloat16).to(at::kFloat)));
}

TEST_CASE("D16: a frozen parameter costs no gradient, no state and no update") {
  Regression regression;
  TrainerOptions frozen = options();
  frozen.optimizer =
      redco::freeze(redco::adamw({.learning_rate = 0.1}),
                    [](const std::string& name, const at::Tensor&) { return name == "b"; });
  frozen.loss_fn = [](at::Generator rng, const TrainState& state, const Tree& params,
                      const Tree& batch, bool is_training) {
    CHECK(params.at("w").tensor().requires_grad());
    CHECK_FALSE(params.at("b").tensor().requires_grad());
    return Regression::loss(rng, state, params, batch, is_training);
  };
  Trainer trainer(frozen);
  trainer.train(regression.data(), 5);
  CHECK(trainer.state().params.at("b").tensor().item<float>() == 0);
  CHECK_FALSE(at::equal(trainer.state().params.at("w").tensor(), at::full({2, 1}, 0.3f)));
  CHECK(trainer.state().opt_state.at("exp_avg").as<Tree::Dict>().size() == 1);
  frozen.optimizer = redco::freeze(redco::adamw({.learning_rate = 0.1}),
                                   [](const std::string&, const at::Tensor&) { return true; });
  CHECK_THROWS_WITH_AS(Trainer{frozen}, doctest::Contains("nothing to train"), redco::Error);
}

TEST_CASE("the same seed is the same run, evaluated or not; another seed is another") {
  Regression regression;
  auto noisy = [](at::Generator rng, const TrainState&, const Tree& params, const Tree& batch,
                  bool) -> Loss {
    at::Tensor errors = Regression::errors(params, batch);
    return {(errors + 0.1 * at::randn(errors.sizes(), rng)).square().mean()};
  };
  auto run = [&](int64_t seed, bool evaluates) {
    TrainerOptions with_noise =
        options(std::make_shared<redco::Deployer>(redco::DeployerOptions{.seed = seed}));
    with_noise.loss_fn = noisy;
    auto trainer = std::make_unique<Trainer>(with_noise);
    redco::FitOptions fit{
        .train_examples = regression.data(), .per_device_batch_size = 3, .n_epochs = 3};
    if (evaluates) fit.eval_examples = regression.data();
    trainer->fit(fit);
    return trainer;
  };
  auto plain = run(1, false);
  CHECK(difference(*plain, *run(1, false)) == 0);
  CHECK(difference(*plain, *run(1, true)) == 0);
  CHECK(difference(*plain, *run(2, false)) > 0);
}

TEST_CASE("fit: a set for each epoch, max_steps, evaluation and its sanity check") {
  Folder folder;
  Regression regression;
  Trainer trainer(options(deployer(folder.path())));
  std::vector<int64_t> epochs, evaluated, at_step;
  redco::FitOptions fit{.per_device_batch_size = 2, .n_epochs = 3};
  fit.train_examples = [&](int64_t epoch) {
    epochs.push_back(epoch);
    return regression.data(4);
  };
  fit.max_steps = 5;
  fit.eval_examples = regression.data();
  fit.eval_per_device_batch_size = 3;
  fit.eval_metrics = [&](const Dataset& examples) {
    evaluated.push_back(examples.size);
    at_step.push_back(trainer.step());
    return redco::EvalResults{{{"accuracy", 0.25}}};
  };
  trainer.fit(fit);
  CHECK(trainer.step() == 5);
  CHECK(epochs == std::vector<int64_t>{0, 1, 2});
  CHECK(evaluated == std::vector<int64_t>{3, 10, 10, 10});
  CHECK(at_step == std::vector<int64_t>{0, 2, 4, 5});
  std::string text;
  for (const auto& line : folder.metrics()) text += line.dump() + "\n";
  CHECK(text.find("accuracy\":0.25") != std::string::npos);

  fit.eval_metrics = [](const Dataset&) -> redco::EvalResults {
    redco::fail("a fault in eval code");
  };
  fit.max_steps.reset();
  CHECK_THROWS_WITH(trainer.fit(fit), "a fault in eval code");
  CHECK(trainer.step() == 5);  // before anything was trained
}

TEST_CASE("tied weights are one parameter with the sum of the gradients") {
  TrainerOptions tied = options();
  at::Tensor shared = at::full({2}, 1.0f);
  tied.params = Tree::Dict{{"head", shared}, {"embedding", shared.view({2})}};
  tied.loss_fn = [](at::Generator, const TrainState&, const Tree& params, const Tree&,
                    bool) -> Loss {
    return {(params.at("head").tensor() + 2 * params.at("embedding").tensor()).sum()};
  };
  tied.optimizer = redco::sgd({.learning_rate = 0.1, .momentum = 0.9});
  Trainer trainer(tied);
  trainer.train(Regression().data(), 10);
  CHECK(trainer.state().params.at("head").tensor().is_same(
      trainer.state().params.at("embedding").tensor()));
  CHECK(trainer.state().params.at("head").tensor()[0].item<float>() ==
        doctest::Approx(1 - 0.1 * 3));
  CHECK(trainer.state().opt_state.at("momentum_buffer").as<Tree::Dict>().size() == 1);
}

TEST_CASE("a parameter that is not dense, or transposed, is trained correctly") {
  Regression regression;
  Trainer plain(options());
  plain.train(regression.data(), 5);
  TrainerOptions odd = options();
  at::Tensor wide = at::full({2, 3}, 0.3f);
  odd.params["w"] = wide.narrow(1, 1, 1);
  Trainer sliced(odd);
  sliced.train(regression.data(), 5);
  CHECK(difference(plain, sliced) < 1e-6);
  CHECK(at::equal(wide, at::full({2, 3}, 0.3f)));
  odd.deployer = deployer();  // a second Trainer of one Deployer shuffles otherwise
  odd.params["w"] = at::full({1, 2}, 0.3f).t();
  Trainer transposed(odd);
  transposed.train(regression.data(), 5);
  CHECK(difference(plain, transposed) < 1e-6);
}

TEST_CASE("a parameter the loss does not use stays as it is, without decay") {
  Regression regression;
  TrainerOptions extra = options();
  extra.params["unused"] = at::full({3}, 7.0f);
  extra.optimizer = redco::adamw({.learning_rate = 0.1, .weight_decay = 0.5});
  Trainer trainer(extra);
  trainer.train(regression.data(), 5);
  CHECK(at::equal(trainer.state().params.at("unused").tensor(), at::full({3}, 7.0f)));
}

TEST_CASE("given parameters stay as they are, unless they were given away") {
  Regression regression;
  TrainerOptions shared = options();
  Trainer trainer(shared);
  trainer.train(regression.data(), 5);
  CHECK(at::equal(shared.params.at("w").tensor(), at::full({2, 1}, 0.3f)));
  CHECK_FALSE(at::equal(trainer.state().params.at("w").tensor(), at::full({2, 1}, 0.3f)));

  TrainerOptions moved = options();
  const void* memory = moved.params.at("w").tensor().data_ptr();
  Trainer owner(std::move(moved));
  CHECK(owner.state().params.at("w").tensor().data_ptr() == memory);
}

TEST_CASE("set_train_state starts anew") {
  Regression regression;
  Trainer trainer(options());
  Tree server = Regression::params();
  std::vector<at::Tensor> results;
  for (int client = 0; client < 2; ++client) {
    trainer.set_train_state({.params = server, .step = 0});
    CHECK(trainer.step() == 0);
    trainer.train(regression.data(), 10);
    results.push_back(trainer.state().params.at("w").tensor());
  }
  CHECK(at::equal(server.at("w").tensor(), at::full({2, 1}, 0.3f)));
  CHECK(at::allclose(results[0], results[1], 1e-5, 1e-6));
  CHECK_FALSE(results[0].is_same(results[1]));
}

TEST_CASE("a train_step_fn of one's own") {
  Folder folder;
  Regression regression;
  Trainer plain(options());
  plain.train(regression.data(), 5);
  TrainerOptions own = options(deployer(folder.path()));
  own.train_step_fn = [](at::Generator rng, Trainer& trainer, const Tree& batch) -> Tree {
    auto [value, grads] = trainer.value_and_grad([&](const Tree& params) {
      return trainer.loss_fn()(rng, trainer.state(), params, batch, true).loss;
    });
    at::Tensor norm = trainer.apply_gradients(grads);
    return Tree::Dict{{"loss", value}, {"norm", norm}, {"count", 3}};
  };
  Trainer trainer(own);
  trainer.train(regression.data(), 5);
  CHECK(trainer.step() == 2);
  CHECK(difference(plain, trainer) < 1e-6);
  auto line = folder.metrics().at(1);
  CHECK(line["count"] == 3);
  CHECK(line["norm"] > 0);
  CHECK(line["lr"] == 0.2);

  CHECK_THROWS_WITH_AS(trainer.apply_gradients(Tree::Dict{{"w", at::zeros({3})}}),
                       "apply_gradients: the gradient of 'w' has shape [3], the parameter [2, 1]",
                       redco::Error);
  CHECK_THROWS_WITH_AS(trainer.apply_gradients(Tree::Dict{{"v", at::zeros({3})}}),
                       "apply_gradients: there is no trained parameter 'v'", redco::Error);
  own.train_step_fn = [](at::Generator, Trainer&, const Tree&) -> Tree {
    return Tree::Dict{{"loss", at::zeros({2})}};
  };
  CHECK_THROWS_WITH_AS(Trainer(own).train(regression.data(), 5),
                       doctest::Contains("the metric 'loss' must be a number"), redco::Error);
  own.accumulate_grad_batches = 2;
  CHECK_THROWS_AS(Trainer{own}, redco::Error);
}

TEST_CASE("a loss that can't be trained on is refused with what was wrong") {
  Regression regression;
  auto train = [&](redco::LossFn loss_fn) {
    TrainerOptions wrong = options();
    wrong.loss_fn = std::move(loss_fn);
    Trainer(wrong).train(regression.data(), 4);
  };
  using Rng = at::Generator;
  auto check = [&](auto loss, const char* text) {
    CHECK_THROWS_WITH_AS(train([=](Rng, const TrainState&, const Tree& params, const Tree& batch,
                                   bool) -> Loss { return loss(params, batch); }),
                         doctest::Contains(text), redco::Error);
  };
  check([](const Tree& p, const Tree& b) { return Loss{Regression::errors(p, b)}; },
        "loss_fn returned a tensor of shape [4, 1]; the loss must be one number");
  check([](const Tree&, const Tree&) { return Loss{}; }, "returned no loss");
  check([](const Tree&, const Tree&) { return Loss{at::zeros({})}; }, "does not depend on any");
  check([](const Tree&, const Tree&) { return Loss{at::zeros({}, at::kLong)}; }, "of type Long");
  check(
      [](const Tree& p, const Tree&) {
        return Loss{p.at("w").tensor().sum(), at::zeros({2})};
      },
      "returned a weight of shape [2]");
  check([](const Tree& p, const Tree&) { return Loss{p.at("w").tensor().sum() * NAN}; },
        "the loss of step 0 is nan");
  check([](const Tree& p, const Tree&) { return Loss{p.at("w").tensor().sum() / 0.0}; },
        "the loss of step 0 is inf");
}

TEST_CASE("what can't work is refused when the Trainer is made or fit is called") {
  Regression regression;
  auto refuses = [&](auto change, const char* text) {
    TrainerOptions wrong = options();
    change(wrong);
    CHECK_THROWS_WITH_AS(Trainer{wrong}, doctest::Contains(text), redco::Error);
  };
  refuses([](TrainerOptions& o) { o.deployer = nullptr; }, "deployer is missing");
  refuses([](TrainerOptions& o) { o.loss_fn = {}; }, "loss_fn is missing");
  refuses([](TrainerOptions& o) { o.optimizer = nullptr; }, "optimizer is missing");
  refuses([](TrainerOptions& o) { o.optimizer = redco::clip_by_global_norm(1); },
          "does not update the parameters");
  refuses([](TrainerOptions& o) { o.params = Tree::Dict{{"n", 1}}; }, "nothing to train");
  refuses([](TrainerOptions& o) { o.compute_dtype = at::kLong; }, "compute_dtype = Long");
  refuses([](TrainerOptions& o) { o.accumulate_grad_batches = 0; }, "must be positive");
  TrainerOptions accumulating = options();
  accumulating.accumulate_grad_batches = 3;
  Trainer trainer(accumulating);
  redco::FitOptions fit{.train_examples = regression.data(), .per_device_batch_size = 2};
  fit.global_batch_size = 4;
  CHECK_THROWS_WITH_AS(trainer.fit(fit), doctest::Contains("give one of them"), redco::Error);
  fit.global_batch_size = 5;
  CHECK_THROWS_WITH_AS(trainer.fit(fit), doctest::Contains("must be a multiple"), redco::Error);
  fit.global_batch_size.reset();
  fit.per_device_batch_size = 0;
  CHECK_THROWS_WITH_AS(trainer.fit(fit), "per_device_batch_size = 0 must be positive",
                       redco::Error);
}

TEST_CASE("an interrupt stops between micro-batches; the log keeps the step before") {
  Folder folder;
  Regression regression;
  TrainerOptions interrupted = options(deployer(folder.path()));
  int calls = 0;
  interrupted.loss_fn = [&](at::Generator rng, const TrainState& state, const Tree& params,
                            const Tree& batch, bool is_training) {
    if (++calls == 3) redco::request_interrupt();
    return Regression::loss(rng, state, params, batch, is_training);
  };
  interrupted.accumulate_grad_batches = 2;
  Trainer trainer(interrupted);
  CHECK_THROWS_AS(trainer.train(regression.data(), 2), redco::Interrupted);
  CHECK(calls == 3);
  CHECK(trainer.step() == 1);
  CHECK(folder.metrics().size() == 1);
  // The half-done step leaves nothing behind.
  trainer.train(regression.data(), 5);
  CHECK(trainer.step() == 2);
}

TEST_CASE("get_default_predictor predicts with the trained parameters") {
  Regression regression;
  Trainer trainer(options());
  trainer.fit({.train_examples = regression.data(), .per_device_batch_size = 5, .n_epochs = 200});
  auto predictor = trainer.get_default_predictor([](at::Generator, const Tree& params,
                                                    const Tree& batch) -> Tree {
    return at::matmul(batch.at("x").tensor(), params.at("w").tensor()) + params.at("b").tensor();
  });
  auto preds = predictor.predict(regression.data(), 3, trainer.state().params);
  REQUIRE(preds.size() == 10);
  for (int i = 0; i < 10; ++i)
    CHECK(std::abs(preds[i].tensor().item<float>() - regression.y[i].item<float>()) < 0.05);
}
