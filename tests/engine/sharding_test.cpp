#include <redco/sharding.h>

#include <redco/detail/coalesced.h>
#include "thread_mesh.h"

#include <doctest/doctest.h>

#include <sstream>

using namespace redco;
using redco::testing::on_threads;

namespace {

const std::vector<std::pair<int64_t, int64_t>> meshes = {{1, 1}, {2, 1}, {1, 2},
                                                         {1, 3}, {4, 1}, {2, 2}};

void check_close(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  if (actual.sizes() == expected.sizes() &&
      at::allclose(actual, expected.to(actual.scalar_type()), 1e-9, 1e-11, true))
    return;
  std::ostringstream text;
  text << what << ": got\n" << actual << "\nexpected\n" << expected;
  throw std::runtime_error(text.str());
}

std::vector<Placement> placements_for(const at::Tensor& tensor) {
  std::vector<Placement> all = {Placement::replicate()};
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) all.push_back(Placement::shard(dim));
  if (tensor.is_floating_point()) all.push_back(Placement::reduction());
  return all;
}

}  // namespace

TEST_CASE("between any two placements") {
  for (auto [dp, mp] : meshes) {
    on_threads(dp, mp, [&](const std::shared_ptr<const Mesh>& mesh) {
      at::Tensor whole = at::arange(5 * 6 * 3, at::kDouble).reshape({5, 6, 3});
      auto all = placements_for(whole);
      for (const auto& a : all)
        for (const auto& b : all)
          for (const auto& c : all)
            for (const auto& d : all) {
              at::Tensor first = shard(whole, mesh, {a, b});
              at::Tensor second = redistribute(first, {c, d});
              check_close(full(second), whole,
                          to_string(Placements{a, b}) + " to " + to_string(Placements{c, d}));
            }
    });
  }
}

TEST_CASE("a block by columns and rows has the whole one's gradients") {
  at::manual_seed(1);
  at::Tensor x0 = at::randn({6, 8}, at::kDouble), w0 = at::randn({12, 8}, at::kDouble),
             v0 = at::randn({8, 12}, at::kDouble), b0 = at::randn({12}, at::kDouble),
             c0 = at::randn({8}, at::kDouble);
  auto run = [&](std::vector<at::Tensor> leaves) {
    for (auto& leaf : leaves) leaf = leaf.detach().requires_grad_();
    auto& x = leaves[0];
    at::Tensor h = at::gelu(at::linear(x, leaves[1], leaves[2]));
    at::Tensor y = at::linear(h, leaves[3], leaves[4]);
    at::Tensor loss = (y * y).mean();
    std::vector<at::Tensor> all = torch::autograd::grad({loss}, leaves);
    all.push_back(loss.detach());
    return all;
  };
  auto expected = run({x0, w0, b0, v0, c0});
  for (auto [dp, mp] : meshes) {
    on_threads(dp, mp, [&](const std::shared_ptr<const Mesh>& mesh) {
      Placement r, s0 = Placement::shard(0), s1 = Placement::shard(1);
      auto actual =
          run({shard(x0, mesh, {s0, r}), shard(w0, mesh, {r, s0}), shard(b0, mesh, {r, s0}),
               shard(v0, mesh, {r, s1}), shard(c0, mesh, {r, r})});
      for (size_t i = 0; i < actual.size(); ++i)
        check_close(full(actual[i]), expected[i], "result " + std::to_string(i));
      CHECK(redco::testing::gathered_without_rule().empty());
    });
  }
}

TEST_CASE("many tensors by one collective") {
  for (auto [dp, mp] : meshes) {
    if (dp == 1) continue;
    on_threads(dp, mp, [&](const std::shared_ptr<const Mesh>& mesh) {
      std::vector<at::Tensor> whole = {
          at::arange(30, at::kDouble).reshape({5, 6}), at::arange(8, at::kDouble),
          at::arange(24, at::kDouble).reshape({2, 3, 4}).transpose(0, 2)};
      Placement r, sum = Placement::reduction(), s0 = Placement::shard(0);
      struct Change {
        Placement from, to;
        Group::Kind kind;
      };
      for (const Change& change :
           {Change{sum, r, Group::all_reduce_kind}, Change{sum, s0, Group::reduce_scatter_kind},
            Change{s0, r, Group::all_gather_kind}}) {
        std::vector<at::Tensor> given;
        for (const at::Tensor& tensor : whole)
          given.push_back(shard(tensor, mesh, {change.from, r}));
        auto before = mesh->group(Mesh::dp).counters();
        auto under_way = start_change(given, {change.to, change.to, change.to}, Mesh::dp);
        std::vector<at::Tensor> results = under_way.wait();
        auto after = mesh->group(Mesh::dp).counters();
        for (int kind = 0; kind < Group::n_kinds; ++kind)
          if (after[size_t(kind)].count - before[size_t(kind)].count != (kind == change.kind))
            throw std::runtime_error("another number of collectives");
        for (size_t i = 0; i < whole.size(); ++i) {
          if (placements_of(results[i])[Mesh::dp] != change.to)
            throw std::runtime_error("placement");
          check_close(full(results[i]), whole[i], "tensor " + std::to_string(i));
        }
      }
    });
  }
}
