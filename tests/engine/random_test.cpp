#include "../../engine/kernels/random/local_region.h"

#include <redco/error.h>
#include <redco/random.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/jit.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

using namespace redco;
using namespace redco::random;

namespace {

using MaybeRng = std::optional<at::Generator>;

// Operators that draw a tensor like the one they are given.
struct Draw {
  const char* name;
  std::function<at::Tensor(at::Tensor, MaybeRng)> call;
};

const std::vector<Draw> draws = {
    {"bernoulli_.float", [](auto t, auto g) { return t.bernoulli_(0.4, g); }},
    {"bernoulli_.Tensor",
     [](auto t, auto g) { return t.bernoulli_(at::full({}, 0.4, at::kDouble), g); }},
    {"bernoulli", [](auto t, auto g) { return at::full_like(t, 0.3).bernoulli(g); }},
    {"bernoulli.p", [](auto t, auto g) { return t.bernoulli(0.3, g); }},
    {"bernoulli.out",
     [](auto t, auto g) { return at::bernoulli_out(t, at::full_like(t, 0.3), g); }},
    {"uniform_", [](auto t, auto g) { return t.uniform_(-1, 1, g); }},
    {"normal_", [](auto t, auto g) { return t.normal_(1, 2, g); }},
    {"log_normal_", [](auto t, auto g) { return t.log_normal_(1, 2, g); }},
    {"exponential_", [](auto t, auto g) { return t.exponential_(3, g); }},
    {"cauchy_", [](auto t, auto g) { return t.cauchy_(0, 1, g); }},
    {"geometric_", [](auto t, auto g) { return t.geometric_(0.1, g); }},
    {"random_", [](auto t, auto g) { return t.random_(g); }},
    {"random_.to", [](auto t, auto g) { return t.random_(100, g); }},
    {"random_.from", [](auto t, auto g) { return t.random_(-100, 100, g); }},
    {"normal.Tensor_float", [](auto t, auto g) { return at::normal(at::ones_like(t), 2, g); }},
    {"normal.float_Tensor", [](auto t, auto g) { return at::normal(2, at::ones_like(t), g); }},
    {"normal.Tensor_Tensor",
     [](auto t, auto g) { return at::normal(at::ones_like(t), at::ones_like(t), g); }},
    {"normal.Tensor_float_out",
     [](auto t, auto g) { return at::normal_out(t, at::ones_like(t), 2, g); }},
    {"normal.float_Tensor_out",
     [](auto t, auto g) { return at::normal_out(t, 2, at::ones_like(t), g); }},
    {"normal.Tensor_Tensor_out",
     [](auto t, auto g) { return at::normal_out(t, at::ones_like(t), at::ones_like(t), g); }},
    {"normal_functional", [](auto t, auto g) { return at::normal_functional(t, 0, 1, g); }},
    {"rand", [](auto t, auto g) { return at::rand(t.sizes(), g); }},
    {"randn", [](auto t, auto g) { return at::randn(t.sizes(), g); }},
    {"randint", [](auto t, auto g) { return at::randint(1000, t.sizes(), g); }},
    {"randint.low", [](auto t, auto g) { return at::randint(-9, 1000, t.sizes(), g); }}};

template <class Check>
void for_each_draw(const Check& check) {
  for (const Draw& draw : draws) {
    CAPTURE(std::string(draw.name));
    check(draw);
  }
}

TEST_CASE("a shard, and a micro-batch, get the numbers they have in the whole") {
  for_each_draw([](const Draw& draw) {
    at::Generator rng = make_rng(5);
    at::Tensor first = draw.call(at::empty({4, 6}), rng),
               second = draw.call(at::empty({4, 6}), rng);
    CHECK(!at::equal(first, second));
    CHECK(counter_generator(rng)->count() == 2);
    for (int64_t start : {0, 2}) {
      at::Generator same = make_rng(5), rows = make_rng(5);
      Region region = Region::whole({4, 6});
      region.starts[1] = start;
      {
        LocalRegion local(same, region);
        draw.call(at::empty({4, 3}), same);
        CHECK(at::equal(draw.call(at::empty({4, 3}), same), second.narrow(1, start, 3)));
      }
      counter_generator(rows)->set_batch({start, 2});
      CHECK(at::equal(draw.call(at::empty({2, 6}), rows), first.narrow(0, start, 2)));
    }
    at::Generator micro = make_rng(5), whole = make_rng(5);
    counter_generator(micro)->set_batch({2, 2});
    counter_generator(whole)->set_batch({0, 4});
    CHECK(at::equal(draw.call(at::empty({6, 6}), micro),
                    draw.call(at::empty({12, 6}), whole).narrow(0, 6, 6)));
    CHECK(at::equal(draw.call(at::empty({3, 6}), micro), draw.call(at::empty({3, 6}), whole)));
  });
}

TEST_CASE("every operator that takes a generator draws from this one or refuses it by name") {
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || !name.name.starts_with("aten::")) continue;
    for (const c10::Argument& argument : op->schema().arguments()) {
      if (argument.name() != "generator") continue;
      CAPTURE(c10::toString(name));
      CHECK(op->hasComputedKernelForDispatchKey(c10::DispatchKey::CustomRNGKeyId));
      CHECK(op->hasKernelForDispatchKey(c10::DispatchKey::DeferredInit));
    }
  }
  at::Tensor x = at::ones({3});
  CHECK_THROWS_WITH_AS(at::poisson(x, make_rng(1)), doctest::Contains("aten::poisson"), Error);
  CHECK_THROWS_WITH_AS(at::rrelu(x, 0.1, 0.2, true, make_rng(1)),
                       doctest::Contains("rrelu_with_noise"), Error);
}

TEST_CASE("bad arguments are refused as by LibTorch") {
  at::Generator rng = make_rng(1);
  at::Tensor x = at::empty({3}), bytes = at::empty({3}, at::kByte);
  CHECK_THROWS_AS(x.bernoulli_(1.5, rng), Error);
  CHECK_THROWS_AS(x.uniform_(1, 0, rng), Error);
  CHECK_THROWS_AS(x.normal_(0, -1, rng), Error);
  CHECK_THROWS_AS(x.exponential_(0, rng), Error);
  CHECK_THROWS_AS(x.cauchy_(0, 0, rng), Error);
  CHECK_THROWS_AS(x.geometric_(0, rng), Error);
  CHECK_THROWS_AS(x.log_normal_(0, 0, rng), Error);
  CHECK_THROWS_AS(x.random_(3, 3, rng), Error);
  CHECK_THROWS_AS(bytes.random_(0, 257, rng), Error);
  CHECK_THROWS_AS(at::multinomial(at::tensor({1.0, -1.0}), 1, true, rng), Error);
  CHECK_THROWS_AS(at::multinomial(at::tensor({1.0, 0.0}), 2, false, rng), Error);
  CHECK_THROWS_AS(at::multinomial(at::tensor({1.0, 0.5}), 3, false, rng), Error);
  CHECK_THROWS(x.expand({2, 3}).normal_(0, 1, rng));
}

TEST_CASE("types: complex, bool, all integers, float16; meta tensors") {
  at::Generator rng = make_rng(3);
  at::Tensor z = at::randn({100000}, rng, at::kComplexFloat);
  CHECK(std::abs(z.abs().square().mean().item<double>() - 1) < 0.02);
  at::Tensor flags = at::empty({10000}, at::kBool).random_(rng);
  CHECK(std::abs(flags.to(at::kDouble).mean().item<double>() - 0.5) < 0.02);
  at::Tensor bytes = at::empty({10000}, at::kByte).random_(rng);
  CHECK(bytes.min().item<int>() == 0);
  CHECK(bytes.max().item<int>() == 255);
  at::Tensor all =
      at::empty({1000}, at::kLong).random_(std::numeric_limits<int64_t>::min(), {}, rng);
  CHECK(all.lt(0).any().item<bool>());
  CHECK(at::empty({1000}, at::kLong).random_(rng).ge(0).all().item<bool>());
  CHECK((at::rand({10}, rng, at::kHalf).scalar_type() == at::kHalf));
  uint64_t before = counter_generator(rng)->count();
  at::empty({10}, at::kMeta).normal_(0, 1, rng);
  CHECK(counter_generator(rng)->count() == before + 1);
}

TEST_CASE("distributions have the means they should") {
  at::Generator rng = make_rng(4);
  constexpr int64_t n = 400000;
  auto mean = [](const at::Tensor& t) { return t.to(at::kDouble).mean().item<double>(); };
  CHECK(mean(at::empty({n}).exponential_(2, rng)) == doctest::Approx(0.5).epsilon(0.01));
  CHECK(mean(at::empty({n}).geometric_(0.25, rng)) == doctest::Approx(4).epsilon(0.01));
  CHECK(at::empty({n}).geometric_(0.25, rng).min().item<double>() == 1);
  CHECK(mean(at::empty({n}).log_normal_(0, 0.5, rng)) ==
        doctest::Approx(std::exp(0.125)).epsilon(0.01));
  CHECK(at::empty({n}).cauchy_(3, 2, rng).median().item<double>() ==
        doctest::Approx(3).epsilon(0.01));
  CHECK(mean(at::full({n}, 0.2).bernoulli(rng)) == doctest::Approx(0.2).epsilon(0.02));
}

TEST_CASE(
    "multinomial: rates, no repetition without replacement, rows of shards and micro-batches") {
  at::Generator rng = make_rng(9);
  at::Tensor weights = at::tensor({1.0, 0.0, 3.0, 4.0}, at::kDouble);
  for (bool replacement : {true, false})
    for (int64_t n : {1, 3}) {
      CAPTURE(replacement);
      at::Tensor rows = weights.expand({100000, 4});
      at::Tensor drawn = at::multinomial(rows, n, replacement, rng);
      CHECK(drawn.sizes() == at::IntArrayRef({100000, n}));
      CHECK(weights.sum().item<double>() == 8);
      at::Tensor first = at::bincount(drawn.select(1, 0), {}, 4).to(at::kDouble) / 100000;
      CHECK(at::allclose(first, weights.to(at::kDouble) / 8, 0, 0.01));
      if (!replacement && n == 3)
        CHECK(at::equal(std::get<0>(drawn.sort(-1))[7], at::tensor({0, 2, 3}, at::kLong)));
      at::Generator a = make_rng(1), b = make_rng(1), c = make_rng(1);
      at::Tensor table = at::rand({6, 10}, make_rng(2));
      at::Tensor whole = at::multinomial(table, n, replacement, a);
      counter_generator(b)->set_batch({2, 2});
      CHECK(at::equal(at::multinomial(table.narrow(0, 2, 2), n, replacement, b),
                      whole.narrow(0, 2, 2)));
      Region region = Region::whole({6, 10});
      region.starts[0] = 3;
      LocalRegion local(c, region);
      CHECK(at::equal(at::multinomial(table.narrow(0, 3, 3), n, replacement, c),
                      whole.narrow(0, 3, 3)));
    }
}

TEST_CASE("randperm is a permutation, the same for every micro-batch") {
  at::Generator a = make_rng(9), b = make_rng(9);
  counter_generator(b)->set_batch({4, 4});
  at::Tensor p = at::randperm(1000, a);
  CHECK(at::equal(std::get<0>(p.sort()), at::arange(1000)));
  CHECK(!at::equal(p, at::arange(1000)));
  CHECK(at::equal(at::randperm(1000, b), p));
}

TEST_CASE("split and fold_in depend on the key alone; states can be put back") {
  at::Generator rng = make_rng(7);
  auto first = split(rng, 3);
  at::rand({2}, rng);
  auto second = split(rng, 3);
  for (int i = 0; i < 3; ++i) {
    CHECK(first[i].current_seed() == second[i].current_seed());
    CHECK(first[i].current_seed() != rng.current_seed());
    CHECK(first[i].current_seed() != first[(i + 1) % 3].current_seed());
    CHECK(first[i].current_seed() != fold_in(rng, i).current_seed());
  }
  CHECK(fold_in(rng, 5).current_seed() == fold_in(make_rng(7), 5).current_seed());
  at::Tensor state = rng.get_state();
  at::Tensor drawn = at::rand({4}, rng);
  at::Generator copy = rng.clone();
  CHECK(at::equal(at::rand({4}, copy), at::rand({4}, rng)));
  rng.set_state(state);
  CHECK(at::equal(at::rand({4}, rng), drawn));
  counter_generator(rng)->set_batch({3, 2});
  CHECK(counter_generator(fold_in(rng, 1))->batch().first == 3);
  at::Generator plain = at::globalContext().defaultGenerator(at::kCPU);
  CHECK(counter_generator(plain) == nullptr);
  CHECK_THROWS_WITH_AS(split(plain, 2), doctest::Contains("only a redco.Rng can be split"), Error);
}

at::Tensor boxed_normal(at::Tensor x, MaybeRng rng) {
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::normal_", "");
  torch::jit::Stack stack = {x, 0.0, 1.0, rng ? c10::IValue(*rng) : c10::IValue()};
  op.callBoxed(&stack);
  return stack[0].toTensor();
}

TEST_CASE("a boxed call comes to its generator within a WithRng, and fails clearly without") {
  at::Generator rng = make_rng(1);
  at::Tensor expected = at::empty({5}).normal_(0, 1, rng);
  CHECK_THROWS_WITH_AS(boxed_normal(at::empty({5}), rng), doctest::Contains("generator"),
                       c10::Error);
  WithRng guard(make_rng(2));
  CHECK(at::equal(boxed_normal(at::empty({5}), make_rng(1)), expected));
  CHECK(at::equal(boxed_normal(at::empty({5}).requires_grad_(false), make_rng(1)), expected));
}

TEST_CASE("WithRng: operators without a generator draw from it, given ones win, scopes nest") {
  auto all = [] {
    at::Tensor x = at::ones({4, 8});
    std::vector<at::Tensor> drawn = {at::rand({4}),
                                     at::randn({4}),
                                     at::rand_like(x),
                                     at::randn_like(x),
                                     at::randint(99, {4}),
                                     at::randperm(20),
                                     at::dropout(x, 0.5, true),
                                     at::alpha_dropout(x, 0.5, true),
                                     at::feature_dropout(x, 0.5, true),
                                     at::bernoulli(x, 0.5),
                                     at::empty({4}).uniform_(),
                                     at::multinomial(x, 2),
                                     std::get<0>(at::native_dropout(x, 0.5, true)),
                                     boxed_normal(at::empty({3}), {})};
    return drawn;
  };
  at::Generator rng = make_rng(11);
  std::vector<at::Tensor> first, again, other;
  {
    WithRng guard(rng);
    CHECK(WithRng::current() == rng);
    first = all();
    {
      WithRng inner(make_rng(12));
      other = all();
      WithRng nothing{at::Generator()};
      CHECK(WithRng::current().current_seed() == 12);
    }
    CHECK(WithRng::current() == rng);
    CHECK(at::equal(at::rand({4}, make_rng(3)), at::rand({4}, make_rng(3))));
    CHECK_THROWS([] {
      WithRng inner(make_rng(13));
      at::ones({2}).add_(at::ones({3}));
    }());
    CHECK(WithRng::current() == rng);
  }
  CHECK(!WithRng::current().defined());
  CHECK(counter_generator(rng)->count() == first.size());
  {
    WithRng guard(make_rng(11));
    again = all();
  }
  at::manual_seed(0);
  std::vector<at::Tensor> outside = all();
  for (size_t i = 0; i < first.size(); ++i) {
    CAPTURE(i);
    CHECK(at::equal(first[i], again[i]));
    CHECK(!at::equal(first[i], other[i]));
  }
  at::manual_seed(0);
  CHECK(at::equal(outside[0], at::rand({4})));
}

TEST_CASE("dropout in attention draws from the rng; without dropout attention is as ever") {
  at::Generator rng = make_rng(1);
  at::Tensor q = at::randn({2, 3, 5, 8}, rng), k = at::randn({2, 3, 5, 8}, rng),
             v = at::randn({2, 3, 5, 8}, rng);
  at::Tensor mask = at::ones({5, 5}, at::kBool).tril();
  auto attend = [&](double p, bool masked, bool causal) {
    return at::scaled_dot_product_attention(
        q, k, v, masked ? std::optional<at::Tensor>(mask) : std::nullopt, p, causal);
  };
  at::Tensor plain = attend(0, true, false);
  WithRng guard(make_rng(2));
  CHECK(at::equal(attend(0, true, false), plain));
  for (bool masked : {true, false}) {
    at::Tensor sum = at::zeros_like(plain);
    for (int i = 0; i < 2000; ++i) sum += attend(0.2, masked, !masked);
    CAPTURE(masked);
    CHECK(at::allclose(sum / 2000, plain, 0, 0.15));
  }
  counter_generator(WithRng::current())->set_count(0);
  at::Tensor once = attend(0.5, false, true);
  CHECK(counter_generator(WithRng::current())->count() == 1);
  counter_generator(WithRng::current())->set_count(0);
  CHECK(at::equal(attend(0.5, false, true), once));
}

// One draw in each function: between its first run and the later ones TorchScript's optimizer may
// swap independent operators, with any generator.
TEST_CASE("TorchScript's operators draw from the rng as well") {
  auto module = torch::jit::compile(R"(
    def dropped(x):
        return torch.dropout(x * 2, 0.5, True)
    def noise(x):
        return torch.rand_like(x) * x
  )");
  at::Tensor x = at::ones({40}).requires_grad_();
  for (const char* function : {"dropped", "noise"}) {
    CAPTURE(std::string(function));
    std::vector<at::Tensor> drawn;
    for (uint64_t seed : {1, 1, 2, 1}) {
      WithRng guard(make_rng(seed));
      drawn.push_back(module->run_method(function, x).toTensor());
    }
    CHECK(at::equal(drawn[0], drawn[1]));
    CHECK(!at::equal(drawn[0], drawn[2]));
    CHECK(at::equal(drawn[0], drawn[3]));
  }
}

TEST_CASE(
    "gradients go through drawn masks, in a grad mode, under autocast and in inference mode") {
  at::Tensor x = at::rand({50, 4}, make_rng(1)).requires_grad_();
  WithRng guard(make_rng(2));
  for (bool fused : {false, true}) {
    at::Tensor y =
        fused ? std::get<0>(at::native_dropout(x, 0.5, true)) : at::dropout(x, 0.5, true);
    at::Tensor grad = torch::autograd::grad({y.sum()}, {x})[0];
    CHECK(at::equal(grad, y.ne(0) * 2.0));
    CHECK(grad.mean().item<double>() == doctest::Approx(1).epsilon(0.3));
  }
  uint64_t before = counter_generator(WithRng::current())->count();
  at::Tensor y = x * 1;
  y.normal_();
  CHECK(torch::autograd::grad({y.sum()}, {x}, {}, {}, false, true)[0].eq(0).all().item<bool>());
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::Tensor z = at::dropout(x, 0.5, true);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  CHECK(z.requires_grad());
  c10::InferenceMode inference;
  at::dropout(x.detach(), 0.5, true);
  CHECK(counter_generator(WithRng::current())->count() == before + 3);
}

}  // namespace
