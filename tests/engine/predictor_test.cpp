#include <redco/error.h>
#include <redco/predictor.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>

#include <numeric>

using redco::Tree;

namespace {

struct Fixture {
  std::shared_ptr<redco::Deployer> deployer =
      std::make_shared<redco::Deployer>(redco::DeployerOptions{.seed = 1});
  Tree params = Tree::Dict{{"scale", at::tensor(10.0f).set_requires_grad(true)}};
  redco::Dataset examples = numbers(7);

  static redco::Dataset numbers(int count) {
    std::vector<float> values(count);
    std::iota(values.begin(), values.end(), 0.0f);
    return redco::dataset(values, [](const redco::ExampleBatch<float>& batch) {
      std::vector<float> x(batch.begin(), batch.end());
      return Tree::Dict{{"x", at::tensor(x)}};
    });
  }

  static Tree scaled(at::Generator, const Tree& params, const Tree& batch) {
    at::Tensor y = batch.at("x").tensor() * params.at("scale").tensor();
    return Tree::Dict{{"y", y}, {"pair", Tree::List{at::stack({y, -y}, 1)}}};
  }
};

}  // namespace

TEST_CASE_FIXTURE(Fixture, "one prediction per example, in order, for any batch size") {
  redco::Predictor predictor({deployer, scaled});
  for (int64_t batch_size : {1, 2, 3, 7, 100}) {
    CAPTURE(batch_size);
    auto preds = predictor.predict(examples, batch_size, params);
    REQUIRE(preds.size() == 7);
    for (int i = 0; i < 7; ++i) {
      CHECK(preds[i].at("y").tensor().item<float>() == 10 * i);
      CHECK_FALSE(preds[i].at("y").tensor().requires_grad());
      const at::Tensor& pair = preds[i].at("pair").as<Tree::List>()[0].tensor();
      CHECK(pair.sizes() == at::IntArrayRef({2}));
      CHECK(pair[1].item<float>() == -10 * i);
    }
  }
  CHECK(at::GradMode::is_enabled());
}

TEST_CASE_FIXTURE(Fixture, "no examples, no predictions") {
  redco::Predictor predictor({deployer, scaled});
  CHECK(predictor.predict(redco::Dataset{}, 4, params).empty());
}

TEST_CASE_FIXTURE(Fixture, "an example has random numbers of its own, whatever the batch size") {
  std::vector<at::Tensor> runs;
  for (int64_t batch_size : {4, 4, 2, 100}) {
    redco::Predictor predictor(
        {std::make_shared<redco::Deployer>(redco::DeployerOptions{.seed = 3}),
         [](at::Generator rng, const Tree&, const Tree& batch) -> Tree {
           auto [name, tensor] = redco::named_tensors(batch).front();
           return at::rand({tensor.size(0)}, rng) + at::rand({tensor.size(0)});
         }});
    std::vector<at::Tensor> drawn;
    for (const Tree& pred : predictor.predict(examples, batch_size, params))
      drawn.push_back(pred.tensor());
    runs.push_back(at::stack(drawn));
    CHECK(at::equal(runs.back(), runs.front()));
  }
  CHECK(std::get<0>(at::_unique2(runs[0])).numel() == runs[0].numel());
}

TEST_CASE_FIXTURE(Fixture, "output_fn makes the outputs") {
  redco::Predictor predictor({deployer, scaled, [](const Tree& preds) {
                                std::vector<Tree> outputs;
                                const at::Tensor& y = preds.at("y").tensor();
                                for (int64_t i = 0; i < y.size(0); ++i)
                                  outputs.push_back(y[i].item<double>() + 0.5);
                                return outputs;
                              }});
  auto preds = predictor.predict(examples, 3, params);
  REQUIRE(preds.size() == 7);
  CHECK(preds[6].as<double>() == 60.5);
}

TEST_CASE_FIXTURE(Fixture, "a wrong number of outputs is an error with both numbers") {
  redco::Predictor predictor({deployer, scaled, [](const Tree&) { return std::vector<Tree>(2); }});
  CHECK_THROWS_WITH_AS(predictor.predict(examples, 3, params),
                       "Predictor: output_fn returned 2 outputs for a batch of 3 examples; it must "
                       "return one for each, in order",
                       redco::Error);
}

TEST_CASE_FIXTURE(Fixture, "what can't be split into examples is named") {
  auto predict = [&](Tree preds) {
    redco::Predictor({deployer, [=](at::Generator, const Tree&, const Tree&) { return preds; }})
        .predict(examples, 3, params);
  };
  CHECK_THROWS_WITH_AS(
      predict(Tree::Dict{{"a", at::zeros({3, 2})}, {"b", Tree::List{at::zeros({2, 3})}}}),
      "Predictor: 'b.1' of the predictions has shape [2, 3]; its first dimension must be the 3 "
      "examples of the batch: return such a tensor from pred_fn or give an output_fn",
      redco::Error);
  CHECK_THROWS_WITH_AS(predict(at::zeros({})), doctest::Contains("the prediction has shape []"),
                       redco::Error);
  CHECK_THROWS_WITH_AS(predict(Tree::Dict{{"text", "x"}}),
                       doctest::Contains("'text' of the predictions is a string"), redco::Error);
}

TEST_CASE_FIXTURE(Fixture, "what is missing is named") {
  CHECK_THROWS_WITH_AS(redco::Predictor({deployer, {}}), "Predictor: pred_fn is missing",
                       redco::Error);
  CHECK_THROWS_WITH_AS(redco::Predictor({nullptr, scaled}), "Predictor: deployer is missing",
                       redco::Error);
  redco::Predictor predictor({deployer, scaled});
  CHECK_THROWS_AS(predictor.predict(examples, 0, params), redco::Error);
}
