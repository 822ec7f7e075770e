// Parameters that are whole only while they are used.

#include <redco/detail/zero3_store.h>
#include <redco/sharding.h>

#include "thread_mesh.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <functional>

using namespace redco;
using redco::testing::on_threads;

namespace {

using MeshPointer = std::shared_ptr<const Mesh>;

constexpr size_t n_layers = 4;

std::vector<at::Tensor> plain_weights() {
  at::Generator rng = at::make_generator<at::CPUGeneratorImpl>(3);
  std::vector<at::Tensor> weights;
  for (size_t i = 0; i < n_layers; ++i) weights.push_back(at::randn({5, 5}, rng, at::kDouble));
  return weights;
}

std::vector<std::vector<Mesh::Dim>> dims_of_each(const std::vector<at::Tensor>& params) {
  std::vector<std::vector<Mesh::Dim>> all;
  for (const at::Tensor& param : params) {
    std::vector<Mesh::Dim>& dims = all.emplace_back();
    for (Mesh::Dim dim : Mesh::dims_of(Mesh::zero))
      if (placements_of(param)[dim].is_sharded()) dims.push_back(dim);
  }
  return all;
}

// Counts what of the gathered memory lives, at each layer.
struct Alive {
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> seen;
  void note(const at::Tensor& whole) {
    seen.emplace_back(
        c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(whole.storage().unsafeGetStorageImpl()));
  }
  int64_t count() const {
    int64_t n = 0;
    for (const auto& one : seen) n += one.expired() ? 0 : 1;
    return n;
  }
};

at::Tensor network(
    const std::vector<at::Tensor>& weights, at::Tensor x,
    const std::function<void(size_t)>& after = [](size_t) {}) {
  for (size_t i = 0; i < weights.size(); ++i) {
    x = at::tanh(at::linear(x, weights[i]));
    after(i);
  }
  return x.pow(2).sum();
}

}  // namespace

TEST_CASE("one block at a time is whole, forward and backward") {
  at::Tensor x = at::arange(20, at::kDouble).reshape({4, 5}) / 20;
  std::vector<at::Tensor> plain = plain_weights();
  for (at::Tensor& weight : plain) weight.set_requires_grad(true);
  at::Tensor expected = network(plain, x);
  auto expected_grads = torch::autograd::grad({expected}, plain);

  auto body = [&](const MeshPointer& mesh) {
    std::vector<at::Tensor> weights;
    for (const at::Tensor& weight : plain_weights())
      weights.push_back(shard(weight, mesh, {Placement::shard(0), {}}).detach());
    auto store = Zero3Store::make(weights, {0, 1, 2, 3}, dims_of_each(weights));
    for (at::Tensor& weight : weights) weight.set_requires_grad(true);
    at::Tensor rows = shard(x, mesh, placements_on(Mesh::batch, Placement::shard(0)));

    for (int step = 0; step < 3; ++step) {
      Alive alive;
      int64_t most = 0;
      Group::Counters before = mesh->group(Mesh::dp).counters();
      at::Tensor loss = network(weights, rows, [&](size_t i) {
        alive.note(store->gathered(i, at::kDouble));
        most = std::max(most, alive.count());
      });
      CHECK(most <= 2);  // the one in use, the one that follows it
      CHECK(full(loss).item<double>() == doctest::Approx(expected.item<double>()));
      auto grads = torch::autograd::grad({loss}, weights);
      for (size_t i = 0; i < n_layers; ++i) CHECK(at::allclose(full(grads[i]), expected_grads[i]));
      // The last of forward is the first of backward, and the input has no gradient.
      auto gathers = mesh->group(Mesh::dp).counters()[Group::all_gather_kind].count -
                     before[Group::all_gather_kind].count;
      CHECK(gathers == 2 * n_layers - 2);
      store->release();
      CHECK(alive.count() == 0);
    }
  };
  on_threads({3, 1, 1, 1, 1, 1}, body);
  // Two groups of processes, each of which gathers from its own copy.
  on_threads({2, 2, 1, 1, 1, 1}, body);
}

TEST_CASE("a step that takes another way than the one before is right too") {
  at::Tensor x = at::arange(10, at::kDouble).reshape({2, 5}) / 10;
  std::vector<at::Tensor> plain = plain_weights();
  on_threads(2, 1, [&](const MeshPointer& mesh) {
    std::vector<at::Tensor> weights;
    for (const at::Tensor& weight : plain)
      weights.push_back(shard(weight, mesh, {Placement::shard(1), {}}).detach());
    auto store = Zero3Store::make(weights, {0, 1, 2, 3}, dims_of_each(weights));
    for (std::vector<size_t> order : {std::vector<size_t>{0, 1, 2, 3}, {3, 1}, {2, 2, 0, 1}, {1}}) {
      at::Tensor y = shard(x, mesh, {}), expected = x;
      for (size_t i : order) {
        y = at::tanh(at::linear(y, weights[i]));
        expected = at::tanh(at::linear(expected, plain[i]));
      }
      CHECK(at::allclose(full(y), expected));
      store->release();
    }
  });
}

TEST_CASE("writing to a parameter, and reading it in another type") {
  on_threads(2, 1, [&](const MeshPointer& mesh) {
    at::Tensor plain = at::arange(6, at::kDouble).reshape({3, 2});
    std::vector<at::Tensor> weights{shard(plain, mesh, {Placement::shard(0), {}}).detach()};
    auto store = Zero3Store::make(weights, {0}, dims_of_each(weights));
    CHECK(at::equal(full(weights[0] + 0), plain));
    weights[0].mul_(2);
    CHECK(placements_of(weights[0])[Mesh::dp] == Placement::shard(0));
    at::Tensor single = weights[0].to(at::kFloat);
    CHECK(at::equal(full(at::mm(single.t(), single)), at::mm(plain.t(), plain).to(at::kFloat) * 4));
    CHECK(at::equal(full(at::mm(weights[0].t(), weights[0])), at::mm(plain.t(), plain) * 4));
  });
}

TEST_CASE("a write to a parameter does not change its converted copies, nor the other way round") {
  on_threads(2, 1, [&](const MeshPointer& mesh) {
    at::Tensor plain = at::arange(3, at::kDouble) + 1;
    at::Tensor weight = shard(plain, mesh, {Placement::shard(0), {}}).detach();
    auto store = Zero3Store::make({weight}, {0}, dims_of_each({weight}));
    at::Tensor copy = weight.to(at::kFloat), view = weight.view({1, 3});
    CHECK(at::equal(full(view + weight), (plain * 2).view({1, 3})));
    weight.view({3, 1}).mul_(10);
    CHECK(at::equal(full(weight.sum()), plain.sum() * 10));
    CHECK(at::equal(full(view.sum()), plain.sum() * 10));
    CHECK(at::equal(full(copy.sum()), plain.sum().to(at::kFloat)));
    at::Tensor other = weight.to(at::kFloat);
    other.view({1, 3}).zero_();
    CHECK(full(other.sum()).item<double>() == 0);
    CHECK(at::equal(full(weight.sum()), plain.sum() * 10));
  });
}

TEST_CASE("blocks are what shares its name up to a number, or but for the last part") {
  std::vector<std::string> names = {"wte.weight",
                                    "h.0.attn.weight",
                                    "h.0.mlp.1.weight",
                                    "h.1.attn.weight",
                                    "ln_f.weight",
                                    "ln_f.bias",
                                    "head"};
  CHECK(blocks_by_name(names) == std::vector<size_t>{0, 1, 1, 2, 3, 3, 4});
}
