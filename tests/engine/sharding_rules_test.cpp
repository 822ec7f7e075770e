#include <redco/error.h>
#include <redco/sharding.h>
#include <redco/sharding_rules.h>

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <map>

using namespace redco;

namespace {

at::Tensor weight(std::vector<int64_t> sizes) { return at::zeros(sizes); }

std::map<std::string, std::string> layout(const Tree& params, int64_t n,
                                          const std::function<void(const Tree&)>& forward,
                                          const std::vector<ShardingRule>& rules = {}) {
  std::map<std::string, std::string> result;
  auto traced = [&](const Tree& stand_ins) {
    forward(stand_ins);
    return Tree();
  };
  for (const ShardingDecision& decision : decide_sharding(params, n, rules, traced)) {
    MESSAGE(decision.name << " " << to_string(decision.placement) << ": " << decision.reason);
    result[decision.name] = to_string(decision.placement);
  }
  return result;
}

}  // namespace

TEST_CASE("a kernel that needs values and checks strides does not end the search for a layout") {
  Tree params = Tree::Dict{{"conv", weight({8, 8, 1, 1})}, {"next", weight({32, 16})}};
  auto found = layout(params, 2, [](const Tree& p) {
    at::Tensor x = at::ones({2, 8, 4, 4});
    at::Tensor h = at::conv2d(x, p.at("conv").tensor());
    at::group_norm(std::get<0>(h.sort(1)), 2);
    at::linear(at::ones({2, 16}), p.at("next").tensor());
  });
  CHECK(found["next"] == "shard(0)");
}

TEST_CASE("a product of what is whole needs no rule") {
  Tree params = Tree::Dict{{"conv", weight({8, 3, 2, 2})}, {"next", weight({32, 16})}};
  auto forward = [](const Tree& p) {
    at::conv2d(at::ones({2, 3, 8, 8}), p.at("conv").tensor());
    at::linear(at::ones({2, 16}), p.at("next").tensor());
  };
  CHECK(layout(params, 2, forward, {{"conv", Placement::replicate()}})["next"] == "shard(0)");
}

TEST_CASE("two layers: outputs, then inputs; a bias follows its weight") {
  Tree params = Tree::Dict{{"a", weight({12, 8})},
                           {"a_bias", weight({12})},
                           {"b", weight({8, 12})},
                           {"b_bias", weight({8})},
                           {"norm", weight({8})}};
  auto forward = [](const Tree& p) {
    at::Tensor x = at::ones({2, 3, 8});
    at::Tensor h = at::gelu(at::linear(x, p.at("a").tensor(), p.at("a_bias").tensor()));
    at::layer_norm(at::linear(h, p.at("b").tensor(), p.at("b_bias").tensor()), {8},
                   p.at("norm").tensor());
  };
  auto found = layout(params, 2, forward);
  CHECK(found["a"] == "shard(0)");
  CHECK(found["a_bias"] == "shard(0)");
  CHECK(found["b"] == "shard(1)");
  CHECK(found["b_bias"] == "replicate");
  CHECK(found["norm"] == "replicate");
}

namespace {

Tree attention(int64_t hidden) {
  return Tree::Dict{{"q", weight({hidden, hidden})},
                    {"k", weight({hidden, hidden})},
                    {"v", weight({hidden, hidden})},
                    {"o", weight({hidden, hidden})}};
}

void attend(const Tree& p, int64_t n_heads, int64_t hidden) {
  at::Tensor x = at::ones({2, 5, hidden});
  auto heads = [&](const char* name) {
    return at::linear(x, p.at(name).tensor())
        .view({2, 5, n_heads, hidden / n_heads})
        .transpose(1, 2);
  };
  at::Tensor scores = heads("q").matmul(heads("k").transpose(-1, -2)).exp();
  at::Tensor y = scores.matmul(heads("v")).transpose(1, 2).reshape({2, 5, hidden});
  at::linear(y, p.at("o").tensor());
}

}  // namespace

TEST_CASE("attention: heads, then inputs") {
  auto found = layout(attention(12), 2, [](const Tree& p) { attend(p, 4, 12); });
  for (const char* name : {"q", "k", "v"}) CHECK(found[name] == "shard(0)");
  CHECK(found["o"] == "shard(1)");
}

TEST_CASE("heads that do not divide are spread unevenly, and so are the inputs of what follows") {
  auto found = layout(attention(12), 2, [](const Tree& p) { attend(p, 3, 12); });
  for (const char* name : {"q", "k", "v"}) CHECK(found[name] == "shard(0, grain = 4)");
  CHECK(found["o"] == "shard(1, grain = 4)");
}

TEST_CASE("fewer heads than ranks stay whole, and so does what takes them in") {
  auto found = layout(attention(12), 4, [](const Tree& p) { attend(p, 3, 12); });
  for (const char* name : {"q", "k", "v", "o"}) CHECK(found[name] == "replicate");
}

TEST_CASE("a fused weight is split part by part") {
  Tree params =
      Tree::Dict{{"qkv", weight({8, 24})}, {"qkv_bias", weight({24})}, {"o", weight({8, 8})}};
  auto found = layout(params, 2, [](const Tree& p) {
    at::Tensor x = at::ones({2, 5, 8});
    at::Tensor fused = at::addmm(p.at("qkv_bias").tensor(), x.view({-1, 8}), p.at("qkv").tensor())
                           .view({2, 5, 24});
    auto parts = fused.split(8, 2);
    auto heads = [](const at::Tensor& t) { return t.view({2, 5, 4, 2}).transpose(1, 2); };
    at::Tensor y =
        heads(parts[0]).matmul(heads(parts[1]).transpose(-1, -2)).exp().matmul(heads(parts[2]));
    at::linear(y.transpose(1, 2).reshape({2, 5, 8}), p.at("o").tensor());
  });
  CHECK(found["qkv"] == "shard(1, block = 8)");
  CHECK(found["qkv_bias"] == "shard(0, block = 8)");
  CHECK(found["o"] == "shard(1)");
}

TEST_CASE("parts as wide as the input are fused; others are heads") {
  for (int64_t n_inputs : {8, 16}) {
    CAPTURE(n_inputs);
    Tree params = Tree::Dict{{"qkv", weight({24, n_inputs})}, {"qkv_bias", weight({24})}};
    auto found = layout(params, 2, [&](const Tree& p) {
      at::Tensor x = at::ones({2, 5, n_inputs});
      at::linear(x, p.at("qkv").tensor(), p.at("qkv_bias").tensor()).view({2, 5, 3, 8});
    });
    std::string expected = n_inputs == 8 ? "shard(0, block = 8)" : "shard(0, grain = 8)";
    CHECK(found["qkv"] == expected);
    CHECK(found["qkv_bias"] == expected);
  }
}

TEST_CASE("what follows a sum without more ado is split along its outputs") {
  Tree params =
      Tree::Dict{{"a", weight({12, 8})}, {"b", weight({8, 12})}, {"head", weight({29, 8})}};
  auto found = layout(params, 2, [](const Tree& p) {
    at::Tensor x = at::ones({2, 30, 8});
    x = x + at::linear(at::relu(at::linear(x, p.at("a").tensor())), p.at("b").tensor());
    at::linear(x, p.at("head").tensor());
  });
  CHECK(found["b"] == "shard(1)");
  CHECK(found["head"] == "shard(0)");
}

TEST_CASE("a tensor of the pass that finds the layout has no memory") {
  Tree params = Tree::Dict{{"w", weight({8, 8})}};
  layout(params, 2, [](const Tree& p) {
    at::Tensor y = at::linear(at::ones({2, 8}), p.at("w").tensor());
    CHECK(is_sharded(y));
    CHECK(!held_memory_of(y).defined());
  });
}

TEST_CASE("watching changes no tensor") {
  at::Tensor mean = at::ones({8}), variance = at::ones({8}), count = at::zeros({}, at::kLong);
  Tree params = Tree::Dict{{"weight", weight({8, 3, 3, 3})}, {"count", count}};
  auto found = layout(params, 2, [&](const Tree& p) {
    p.at("count").tensor().add_(1);
    at::Tensor y = at::conv2d(at::ones({2, 3, 4, 4}), p.at("weight").tensor());
    at::batch_norm(y, {}, {}, mean, variance, true, 0.5, 1e-5, false);
  });
  CHECK(found["weight"] == "shard(0)");
  CHECK(mean.equal(at::ones({8})));
  CHECK(variance.equal(at::ones({8})));
  CHECK(count.item<int64_t>() == 0);
}

TEST_CASE("the weight of every product is split along its outputs") {
  using Product = std::function<at::Tensor(const at::Tensor& weight)>;
  at::Tensor x = at::ones({2, 3}), xs = at::ones({5, 2, 3}), sum = at::ones({2, 4});
  struct Row {
    const char* name;
    std::vector<int64_t> sizes;
    Product product;
    const char* expected;
  };
  for (const Row& row : std::vector<Row>{
           {"mm", {3, 4}, [&](auto& w) { return at::mm(x, w); }, "shard(1)"},
           {"addmm", {3, 4}, [&](auto& w) { return at::addmm(sum, x, w); }, "shard(1)"},
           {"bmm", {5, 3, 4}, [&](auto& w) { return at::bmm(xs, w); }, "shard(2)"},
           {"baddbmm", {5, 3, 4}, [&](auto& w) { return at::baddbmm(sum, xs, w); }, "shard(2)"},
           {"addbmm", {5, 3, 4}, [&](auto& w) { return at::addbmm(sum, xs, w); }, "shard(2)"},
           {"mv", {4, 3}, [&](auto& w) { return at::mv(w, x[0]); }, "shard(0)"},
           {"addmv", {4, 3}, [&](auto& w) { return at::addmv(sum[0], w, x[0]); }, "shard(0)"}}) {
    INFO(row.name);
    Tree params = Tree::Dict{{"w", weight(row.sizes)}};
    auto found = layout(params, 2, [&](const Tree& p) { row.product(p.at("w").tensor()); });
    CHECK(found["w"] == row.expected);
  }
}

TEST_CASE("rules") {
  Tree params = Tree::Dict{{"model", Tree::Dict{{"a", weight({12, 8})}, {"b", weight({8, 12})}}}};
  auto forward = [](const Tree& p) {
    at::Tensor x = at::ones({3, 8});
    at::linear(at::linear(x, p.at("model").at("a").tensor()).relu(),
               p.at("model").at("b").tensor());
  };
  auto found = layout(params, 2, forward, {{"a", Placement::replicate()}});
  CHECK(found["model.a"] == "replicate");
  CHECK(found["model.b"] == "shard(0)");
  found = layout(params, 2, forward, {{"mod*b", Placement::shard(1)}});
  CHECK(found["model.a"] == "shard(0)");
  params.at("model")["tied"] = params.at("model").at("a");
  found = layout(params, 2, forward, {{"tied", Placement::replicate()}});
  CHECK(found["model.a"] == "replicate");
  CHECK_THROWS_WITH_AS(layout(params, 2, forward, {{"c", Placement::shard(0)}}),
                       doctest::Contains("matches no parameter"), Error);
  CHECK_THROWS_WITH_AS(layout(params, 2, forward, {{"a", Placement::shard(2)}}),
                       doctest::Contains("splits dimension 2"), Error);
}
