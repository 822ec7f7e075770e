// Training, evaluation and prediction announce their next batches to the dataset.
#include <redco/predictor.h>
#include <redco/random.h>
#include <redco/trainer.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <vector>

using redco::Dataset;
using redco::Tree;
using Indices = std::vector<int64_t>;

namespace {

// Keeps what it is told and asked for, and what a batch draws. Makes each batch when it is told of
// it, as workers may.
struct Recorder {
  std::vector<Indices> told, asked;
  std::map<Indices, at::Tensor> drawn_ahead;
  size_t most_ahead = 0;

  Dataset dataset(int64_t size, int64_t n_ahead) {
    Dataset result;
    result.size = size;
    result.n_ahead = n_ahead;
    result.prefetch = [this](const Indices& indices) {
      REQUIRE(redco::WithRng::current().defined());
      told.push_back(indices);
      drawn_ahead[indices] = at::rand({int64_t(indices.size())});
      most_ahead = std::max(most_ahead, told.size() - asked.size());
    };
    result.collate = [this](const Indices& indices) -> Tree {
      asked.push_back(indices);
      at::Tensor x = at::rand({int64_t(indices.size())});
      // The same numbers, whether it is made now or was before.
      if (drawn_ahead.count(indices)) CHECK(at::equal(x, drawn_ahead[indices]));
      return Tree::Dict{{"x", x}};
    };
    return result;
  }
};

redco::TrainerOptions options(int64_t accumulate) {
  redco::TrainerOptions result;
  result.deployer = std::make_shared<redco::Deployer>(redco::DeployerOptions{.seed = 1});
  result.params = Tree::Dict{{"w", at::zeros({1})}};
  result.loss_fn = [](at::Generator, const redco::TrainState&, const Tree& params,
                      const Tree& batch, bool) -> redco::Loss {
    return {(params.at("w").tensor() - batch.at("x").tensor()).square().mean()};
  };
  result.optimizer = redco::sgd({.learning_rate = 0.1});
  result.accumulate_grad_batches = accumulate;
  return result;
}

}  // namespace

TEST_CASE("a dataset is told of each batch before it is asked for it, in order") {
  for (int64_t n_ahead : {1, 3, 100}) {
    Recorder recorder;
    redco::Trainer trainer(options(2));
    trainer.train(recorder.dataset(10, n_ahead), 4);  // steps of 4 + 4 and 2 examples
    CHECK(recorder.asked.size() == 3);
    CHECK(recorder.told == recorder.asked);
    CHECK(recorder.most_ahead == size_t(std::min<int64_t>(n_ahead, 3)));

    recorder = {};
    trainer.eval_loss(recorder.dataset(9, n_ahead), 2);
    CHECK(recorder.told == std::vector<Indices>{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8}});
    CHECK(recorder.told == recorder.asked);

    recorder = {};
    auto predictor = trainer.get_default_predictor(
        [](at::Generator, const Tree&, const Tree& batch) { return batch; });
    predictor.predict(recorder.dataset(5, n_ahead), 2, trainer.state().params);
    CHECK(recorder.told == std::vector<Indices>{{0, 1}, {2, 3}, {4}});
    CHECK(recorder.told == recorder.asked);
  }
}

TEST_CASE("a run that ends early asks for less than it told of") {
  Recorder recorder;
  redco::Trainer trainer(options(1));
  redco::FitOptions fit;
  fit.train_examples = recorder.dataset(10, 2);
  fit.per_device_batch_size = 2;
  fit.n_epochs = 1;
  fit.max_steps = 2;
  trainer.fit(fit);
  CHECK(recorder.asked.size() == 2);
  CHECK(recorder.told.size() <= 4);
}

TEST_CASE("what a batch draws is a function of the seed, the epoch, the step and the example") {
  // By example and epoch, whatever the micro-batches.
  auto draws = [](int64_t micro, int64_t accumulate) {
    std::vector<float> all;
    redco::Trainer trainer(options(accumulate));
    Dataset dataset;
    dataset.size = 16;
    dataset.collate = [&](const Indices& indices) -> Tree {
      at::Tensor x = at::rand({int64_t(indices.size())});
      for (int64_t i = 0; i < x.size(0); ++i) all.push_back(x[i].item<float>());
      return Tree::Dict{{"x", x}};
    };
    for (int epoch = 0; epoch < 2; ++epoch) trainer.train(dataset, micro);
    return all;
  };
  std::vector<float> whole = draws(8, 1);
  CHECK(draws(8, 1) == whole);
  CHECK(draws(2, 4) == whole);
  std::vector<float> sorted = whole;
  std::sort(sorted.begin(), sorted.end());
  CHECK(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end());
}
