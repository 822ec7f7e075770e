// Every optimizer against its formula, written out in doubles, over several steps.
#include <redco/error.h>
#include <redco/optim.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

using redco::Optimizer;
using redco::Tree;
using redco::Update;

namespace {

using Values = std::vector<double>;

Values values_of(const at::Tensor& tensor) {
  at::Tensor t = tensor.detach().to(at::kDouble).contiguous();
  return Values(t.data_ptr<double>(), t.data_ptr<double>() + t.numel());
}

void check_close(const at::Tensor& tensor, const Values& expected) {
  Values values = values_of(tensor);
  REQUIRE(values.size() == expected.size());
  for (size_t i = 0; i < values.size(); ++i)
    CHECK(std::abs(values[i] - expected[i]) <= 1e-6 * (1 + std::abs(expected[i])));
}

// A small problem: two parameters, other gradients at each step.
struct Problem {
  std::vector<redco::NamedTensor> params = {{"block.bias", at::randn({3})},
                                            {"block.weight", at::randn({4, 3})}};
  std::vector<Values> expected = {values_of(params[0].second), values_of(params[1].second)};
  Tree state;
  Update update;

  explicit Problem(const Optimizer& optimizer) : state(optimizer.init(params)) {
    for (auto& [name, param] : params) {
      param.set_requires_grad(true);
      update.names.push_back(name);
      update.params.push_back(param);
    }
  }

  // One step of `optimizer`, and `formula(values, grads, parameter)` of the expected values.
  template <class Formula>
  void step(const Optimizer& optimizer, Formula formula) {
    update.grads.clear();
    std::vector<Values> grads;
    for (auto& [_, param] : params) {
      update.grads.push_back(at::randn(param.sizes()));
      grads.push_back(values_of(update.grads.back()));
    }
    update.grads_changed();
    optimizer.update(update, state);
    ++update.step;
    for (size_t i = 0; i < params.size(); ++i) {
      formula(expected[i], grads[i], i);
      check_close(params[i].second, expected[i]);
    }
  }
};

struct Moments {
  Values m[2] = {Values(3), Values(12)}, v[2] = {Values(3), Values(12)};
};

}  // namespace

TEST_CASE("adamw: the formula, a schedule, and a mask for the decay") {
  redco::Schedule schedule = [](int64_t step) { return 0.1 / double(step + 1); };
  auto optimizer = redco::adamw(
      {.learning_rate = schedule,
       .betas = {0.8, 0.95},
       .eps = 1e-4,
       .weight_decay = 0.3,
       .mask = [](const std::string&, const at::Tensor& param) { return param.dim() > 1; }});
  Problem problem(*optimizer);
  Moments moments;
  for (int t = 1; t <= 5; ++t)
    problem.step(*optimizer, [&](Values& p, const Values& g, size_t which) {
      double lr = 0.1 / t, decay = which == 1 ? 0.3 : 0;
      for (size_t i = 0; i < p.size(); ++i) {
        double& m = moments.m[which][i] = 0.8 * moments.m[which][i] + 0.2 * g[i];
        double& v = moments.v[which][i] = 0.95 * moments.v[which][i] + 0.05 * g[i] * g[i];
        p[i] -= lr * decay * p[i];
        p[i] -= lr * (m / (1 - std::pow(0.8, t))) / (std::sqrt(v / (1 - std::pow(0.95, t))) + 1e-4);
      }
    });
  CHECK(problem.state.at("step").tensor().item<float>() == 5);
  CHECK(problem.state.at("exp_avg").as<Tree::Dict>().count("block.weight") == 1);
  CHECK(optimizer->learning_rates(3, {}) == std::vector{0.1 / 4});
}

TEST_CASE("adam adds the decay to the gradient") {
  auto optimizer = redco::adam({.learning_rate = 0.01, .weight_decay = 0.5});
  Problem problem(*optimizer);
  Moments moments;
  for (int t = 1; t <= 4; ++t)
    problem.step(*optimizer, [&](Values& p, const Values& g, size_t which) {
      for (size_t i = 0; i < p.size(); ++i) {
        double grad = g[i] + 0.5 * p[i];
        double& m = moments.m[which][i] = 0.9 * moments.m[which][i] + 0.1 * grad;
        double& v = moments.v[which][i] = 0.999 * moments.v[which][i] + 0.001 * grad * grad;
        p[i] -=
            0.01 * (m / (1 - std::pow(0.9, t))) / (std::sqrt(v / (1 - std::pow(0.999, t))) + 1e-8);
      }
    });
}

TEST_CASE("sgd: plain, momentum with dampening, nesterov") {
  SUBCASE("plain") {
    auto optimizer = redco::sgd({.learning_rate = 0.1, .weight_decay = 0.01});
    Problem problem(*optimizer);
    for (int t = 0; t < 3; ++t)
      problem.step(*optimizer, [&](Values& p, const Values& g, size_t) {
        for (size_t i = 0; i < p.size(); ++i) p[i] -= 0.1 * (g[i] + 0.01 * p[i]);
      });
  }
  for (bool nesterov : {false, true}) {
    CAPTURE(nesterov);
    double dampening = nesterov ? 0 : 0.4;
    auto optimizer = redco::sgd({.learning_rate = 0.1,
                                 .momentum = 0.9,
                                 .dampening = dampening,
                                 .nesterov = nesterov,
                                 .weight_decay = 0.01});
    Problem problem(*optimizer);
    Moments moments;
    for (int t = 0; t < 4; ++t)
      problem.step(*optimizer, [&](Values& p, const Values& g, size_t which) {
        for (size_t i = 0; i < p.size(); ++i) {
          double grad = g[i] + 0.01 * p[i];
          double& buffer = moments.m[which][i];
          buffer = t == 0 ? grad : 0.9 * buffer + (1 - dampening) * grad;
          p[i] -= 0.1 * (nesterov ? grad + 0.9 * buffer : buffer);
        }
      });
  }
}

TEST_CASE("lion: the formula") {
  auto optimizer = redco::lion({.learning_rate = 0.02, .betas = {0.7, 0.9}, .weight_decay = 0.1});
  Problem problem(*optimizer);
  Moments moments;
  for (int t = 0; t < 4; ++t)
    problem.step(*optimizer, [&](Values& p, const Values& g, size_t which) {
      for (size_t i = 0; i < p.size(); ++i) {
        double& m = moments.m[which][i];
        double direction = 0.7 * m + 0.3 * g[i];
        p[i] -= 0.02 * ((direction > 0) - (direction < 0) + 0.1 * p[i]);
        m = 0.9 * m + 0.1 * g[i];
      }
    });
}

TEST_CASE("adafactor: the formula, factored for matrices") {
  auto optimizer = redco::adafactor({.learning_rate = 0.05, .weight_decay = 0.1});
  Problem problem(*optimizer);
  Values variance(3), rows(4), columns(3);
  auto rms = [](const Values& x) {
    return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0) / double(x.size()));
  };
  for (int t = 1; t <= 4; ++t)
    problem.step(*optimizer, [&](Values& p, const Values& g, size_t which) {
      double weight = std::pow(t, -0.8), eps = 0x1p-23;
      Values estimate(p.size());
      if (which == 0) {
        for (size_t i = 0; i < 3; ++i)
          estimate[i] = variance[i] += weight * (g[i] * g[i] - variance[i]);
      } else {
        Values row(4), column(3);
        for (size_t i = 0; i < 12; ++i) {
          row[i / 3] += g[i] * g[i] / 3;
          column[i % 3] += g[i] * g[i] / 4;
        }
        for (size_t i = 0; i < 4; ++i) rows[i] += weight * (row[i] - rows[i]);
        for (size_t i = 0; i < 3; ++i) columns[i] += weight * (column[i] - columns[i]);
        double mean = std::accumulate(rows.begin(), rows.end(), 0.0) / 4;
        for (size_t i = 0; i < 12; ++i) estimate[i] = rows[i / 3] * columns[i % 3] / mean;
      }
      Values change(p.size());
      for (size_t i = 0; i < p.size(); ++i)
        change[i] = g[i] / std::sqrt(std::max(estimate[i], eps * eps));
      double alpha = std::max(1e-3, rms(p)) * std::min(0.05, 1 / std::sqrt(t));
      alpha /= std::max(1.0, rms(change));
      for (size_t i = 0; i < p.size(); ++i) p[i] = p[i] * (1 - 0.05 * 0.1) - alpha * change[i];
    });
  CHECK(problem.state.at("row_var").at("block.weight").tensor().sizes() == at::IntArrayRef({4, 1}));
  CHECK(problem.state.at("col_var").at("block.weight").tensor().sizes() == at::IntArrayRef({1, 3}));
}

TEST_CASE("chain clips by the global norm, then updates") {
  for (double max_norm : {0.5, 1000.0}) {
    CAPTURE(max_norm);
    auto optimizer =
        redco::chain({redco::clip_by_global_norm(max_norm), redco::sgd({.learning_rate = 1.0})});
    Problem problem(*optimizer);
    problem.update.grads = {at::full({3}, 2.0), at::full({4, 3}, -2.0)};
    double norm = std::sqrt(15 * 4.0), scale = std::min(1.0, max_norm / (norm + 1e-6));
    CHECK(problem.update.global_norm().item<double>() == doctest::Approx(norm));
    optimizer->update(problem.update, problem.state);
    for (double& value : problem.expected[0]) value -= 2 * scale;
    for (double& value : problem.expected[1]) value += 2 * scale;
    check_close(problem.params[0].second, problem.expected[0]);
    check_close(problem.params[1].second, problem.expected[1]);
    CHECK(problem.update.global_norm().item<double>() == doctest::Approx(norm * scale));
    CHECK(optimizer->learning_rates(0, Tree::List{Tree(), Tree()}) == std::vector{1.0});
  }
}

TEST_CASE("clipping hides no gradient that is not a number") {
  auto optimizer =
      redco::chain({redco::clip_by_global_norm(1), redco::sgd({.learning_rate = 1.0})});
  Problem problem(*optimizer);
  problem.update.grads = {at::full({3}, NAN), at::full({4, 3}, 1.0)};
  optimizer->update(problem.update, problem.state);
  CHECK(std::isnan(values_of(problem.params[1].second)[0]));
}

TEST_CASE("chain and options are checked when they are made") {
  auto clip = redco::clip_by_global_norm(1);
  auto sgd = redco::sgd({.learning_rate = 1.0});
  CHECK_THROWS_WITH_AS(redco::chain({}), doctest::Contains("needs at least"), redco::Error);
  CHECK_THROWS_WITH_AS(redco::chain({clip}),
                       doctest::Contains("none of its 1 entries updates the parameters"),
                       redco::Error);
  CHECK_THROWS_WITH_AS(
      redco::chain({sgd, clip}),
      "chain: entry 2 of 2 changes gradients: it must precede the one that updates "
      "the parameters",
      redco::Error);
  CHECK_THROWS_AS(redco::chain({sgd, sgd}), redco::Error);
  CHECK_THROWS_WITH_AS(redco::adamw({}),
                       "adamw: learning_rate is missing: give a number or a schedule",
                       redco::Error);
  CHECK_THROWS_AS(redco::adamw({.learning_rate = 1.0, .betas = {0.9, 1.0}}), redco::Error);
  CHECK_THROWS_AS(redco::adamw({.learning_rate = 1.0, .weight_decay = -1}), redco::Error);
  CHECK_THROWS_AS(redco::sgd({.learning_rate = 1.0, .nesterov = true}), redco::Error);
  CHECK_THROWS_AS(redco::clip_by_global_norm(0), redco::Error);
  CHECK_THROWS_AS(redco::clip_by_global_norm(NAN), redco::Error);
}

TEST_CASE("freeze leaves its parameters out of the state") {
  auto optimizer = redco::freeze(
      redco::adamw({.learning_rate = 0.1}),
      [](const std::string& name, const at::Tensor&) { return name.ends_with("bias"); });
  Problem problem(*optimizer);
  CHECK(optimizer->trains("block.weight", {}));
  CHECK_FALSE(optimizer->trains("block.bias", {}));
  CHECK(problem.state.at("exp_avg").as<Tree::Dict>().size() == 1);
  auto chained = redco::chain({redco::clip_by_global_norm(1), optimizer});
  CHECK_FALSE(chained->trains("block.bias", {}));
}

TEST_CASE("a gradient or a state of another layout is refused, never walked over") {
  auto optimizer = redco::adamw({.learning_rate = 0.1});
  Problem problem(*optimizer);
  problem.update.grads = {at::randn({3}), at::randn({3, 4}).t()};
  CHECK_THROWS_WITH_AS(optimizer->update(problem.update, problem.state),
                       doctest::Contains("the gradient of 'block.weight' has shape [4, 3]"),
                       redco::Error);
  problem.update.grads = {at::randn({3}), at::randn({4, 3})};
  problem.state.at("exp_avg")["block.weight"] = at::randn({2, 3});
  CHECK_THROWS_WITH_AS(optimizer->update(problem.update, problem.state),
                       doctest::Contains("'exp_avg' of parameter 'block.weight' has shape [2, 3]"),
                       redco::Error);
  problem.state.at("exp_avg") = Tree::Dict{};
  CHECK_THROWS_WITH_AS(optimizer->update(problem.update, problem.state),
                       doctest::Contains("no 'exp_avg' for parameter 'block.bias'"), redco::Error);
}

TEST_CASE("a decay mask is asked once per parameter, not once per step") {
  int calls = 0;
  auto optimizer =
      redco::adamw({.learning_rate = 0.1, .mask = [&](const std::string&, const at::Tensor&) {
                      ++calls;
                      return true;
                    }});
  Problem problem(*optimizer);
  for (int t = 0; t < 3; ++t) {
    problem.update.grads = {at::randn({3}), at::randn({4, 3})};
    optimizer->update(problem.update, problem.state);
  }
  CHECK(calls == 2);
}
