#include <redco/sharding.h>

#include <redco/detail/coalesced.h>
#include "selection.h"
#include "sharding_cases.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <sstream>

using namespace redco;
using redco::testing::on_threads;

namespace {

const std::vector<Mesh::Shape> meshes = {{1, 1, 1, 1, 1, 1}, {2, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 2, 1},
                                         {1, 1, 1, 1, 3, 1}, {4, 1, 1, 1, 1, 1}, {2, 1, 1, 1, 2, 1},
                                         {1, 3, 1, 1, 1, 1}, {2, 2, 1, 1, 1, 1}, {2, 2, 1, 1, 2, 1},
                                         {1, 1, 1, 2, 2, 1}, {2, 1, 1, 2, 1, 1}, {1, 1, 3, 1, 1, 1},
                                         {2, 1, 2, 1, 1, 1}, {1, 1, 1, 1, 2, 2}};

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

// The placements of a tensor that use only the dimensions that this mesh has.
std::vector<Placements> all_placements(const at::Tensor& tensor, const Mesh::Shape& shape) {
  std::vector<Placements> all = {{}};
  for (Mesh::Dim dim : Mesh::dims) {
    if (shape[dim] == 1) continue;
    std::vector<Placements> longer;
    std::vector<Placement> own_placements = placements_for(tensor);
    if (Mesh::has(dim, Mesh::expert) || Mesh::has(dim, Mesh::pipeline))
      for (int64_t rank : {int64_t{0}, shape[dim] - 1})
        own_placements.push_back(Placement::on_rank(rank));
    for (Placements placements : all)
      for (const Placement& own : own_placements) {
        placements[dim] = own;
        longer.push_back(placements);
      }
    all = std::move(longer);
  }
  return all;
}

}  // namespace

TEST_CASE("between any two placements") {
  at::Tensor whole = at::arange(5 * 6 * 3, at::kDouble).reshape({5, 6, 3});
  for (const Mesh::Shape& shape : meshes) {
    auto all = all_placements(whole, shape);
    std::vector<std::pair<Placements, Placements>> changes;
    for (const Placements& from : all)
      for (const Placements& to : all) changes.emplace_back(from, to);
    // Some of those on three dimensions, unless all are asked for.
    if (changes.size() > 1000 && !runs_all()) {
      std::shuffle(changes.begin(), changes.end(), std::mt19937_64(1));
      changes.resize(1000);
    }
    on_threads(shape, [&](const std::shared_ptr<const Mesh>& mesh) {
      for (const auto& [from, to] : changes) {
        std::string what = to_string(from) + " to " + to_string(to);
        at::Tensor first = redco::testing::placed(whole, mesh, from);
        at::Tensor second = redistribute(first, to);
        if (placements_of(second) != to) throw std::runtime_error(what + ": another placement");
        check_close(full(second), whole, what);
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
  for (const Mesh::Shape& shape : meshes) {
    on_threads(shape, [&](const std::shared_ptr<const Mesh>& mesh) {
      Placement s0 = Placement::shard(0), s1 = Placement::shard(1);
      auto on_shards = [](const Placement& own) { return placements_on(Mesh::model, own); };
      auto actual = run({shard(x0, mesh, placements_on(Mesh::batch, s0)),
                         shard(w0, mesh, on_shards(s0)), shard(b0, mesh, on_shards(s0)),
                         shard(v0, mesh, on_shards(s1)), shard(c0, mesh, {})});
      for (size_t i = 0; i < actual.size(); ++i)
        check_close(full(actual[i]), expected[i], "result " + std::to_string(i));
      CHECK(redco::testing::gathered_without_rule().empty());
    });
  }
}

TEST_CASE("weak references do not hold the memory of a local tensor") {
  on_threads({2, 1, 1, 1, 1, 1}, [](const auto& mesh) {
    at::Tensor sharded = shard(at::ones({4}), mesh, {Placement::shard(0)});
    at::Tensor local = to_local(sharded);
    const c10::weak_intrusive_ptr<c10::StorageImpl> memory(local.storage().getWeakStorageImpl());
    const c10::weak_intrusive_ptr<c10::TensorImpl> profiled(sharded.getIntrusivePtr());
    local.reset();
    if (memory.expired()) throw std::runtime_error("the sharded tensor has not kept its memory");
    sharded.reset();
    if (!memory.expired()) throw std::runtime_error("memory is held");
  });
}

TEST_CASE("many tensors by one collective") {
  for (const Mesh::Shape& shape : meshes) {
    if (shape[Mesh::dp] == 1) continue;
    on_threads(shape, [&](const std::shared_ptr<const Mesh>& mesh) {
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

TEST_CASE("dimensions of the mesh by role") {
  CHECK(Mesh::dims_of(Mesh::batch) == std::vector{Mesh::dp, Mesh::dp_replicate, Mesh::ep});
  CHECK(Mesh::dims_of(Mesh::zero) == std::vector{Mesh::dp, Mesh::ep, Mesh::cp});
  CHECK(Mesh::dim_of(Mesh::model) == Mesh::mp);
  on_threads({2, 2, 1, 1, 3, 1}, [](const std::shared_ptr<const Mesh>& mesh) {
    CHECK(mesh->size(Mesh::batch) == 4);
    CHECK(mesh->size(Mesh::model) == 3);
    CHECK(mesh->size(Mesh::zero) == 2);
    // The model's ranks are neighbours, then those that ZeRO shares state between.
    int64_t rank = mesh->processes().rank;
    CHECK(mesh->coordinate(Mesh::mp) == rank % 3);
    CHECK(mesh->coordinate(Mesh::dp) == rank / 3 % 2);
    CHECK(mesh->coordinate(Mesh::dp_replicate) == rank / 6);
    // 11 examples on 4: the parts of two parts.
    at::Tensor rows = at::arange(11);
    Span own = span_of(11, Mesh::batch, *mesh);
    at::Tensor split = shard(rows, mesh, placements_on(Mesh::batch, Placement::shard(0)));
    CHECK(at::equal(to_local(split), rows.slice(0, own.begin, own.end)));
  });
}

TEST_CASE("an optional dimension of the mesh is shown where a tensor differs on it") {
  CHECK(to_string(Placements()) == "{dp = replicate, mp = replicate}");
  CHECK(to_string(placements_on(Mesh::batch, Placement::shard(0))) ==
        "{dp = shard(0), dp_replicate = shard(0), ep = shard(0), mp = replicate}");
}

TEST_CASE("a mesh dimension splits blocks of a dimension that others split between them") {
  at::Tensor whole = at::arange(24 * 2, at::kDouble).reshape({24, 2});
  on_threads({2, 2, 1, 1, 2, 1}, [&](const std::shared_ptr<const Mesh>& mesh) {
    Placement r, s = Placement::shard(0), blocks = Placement::shard(0, 6);
    for (const Placements& placements :
         {Placements{s, r, r, r, blocks}, Placements{r, s, r, r, blocks},
          Placements{s, blocks, r, r, r}, Placements{r, r, r, r, blocks},
          Placements{blocks, r, r, r, s}, Placements{r, r, r, blocks, s}})
      check_close(full(shard(whole, mesh, placements)), whole, to_string(placements));
    CHECK_THROWS_WITH(shard(whole, mesh, {s, s, {}, {}, Placement::shard(0, 12)}),
                      doctest::Contains("dp does not cut between the blocks that mp"));
    CHECK_THROWS_WITH(shard(whole, mesh, {Placement::shard(0, 8), r, {}, {}, s}),
                      doctest::Contains("dp does not cut between the blocks that mp"));
    // Of 16 and 8 rows, as a split between groups of 8 leaves.
    const Placement uneven = Placement::shard(0, 0, 8);
    CHECK_THROWS_WITH(shard(whole, mesh, {uneven, r, {}, {}, blocks}),
                      doctest::Contains("dp does not cut between the blocks that mp"));
    check_close(full(shard(whole, mesh, {r, r, {}, {}, blocks}) +
                     shard(whole, mesh, {uneven, r, {}, {}, Placement::shard(1)})),
                whole + whole, "added");
  });
}

TEST_CASE("blocks of several lengths are each split") {
  at::Tensor whole = at::arange(12 * 3, at::kDouble).reshape({12, 3});
  on_threads({1, 1, 1, 1, 2, 1}, [&](const std::shared_ptr<const Mesh>& mesh) {
    Placement r, blocks = Placement::shard_blocks(0, {8, 2, 2});
    CHECK(to_string(blocks) == "shard(0, block = {8, 2, 2})");
    CHECK(blocks == Placement::shard_blocks(0, {8, 2, 2}));
    CHECK(Placement::shard_blocks(0, {4, 4, 4}) == Placement::shard(0, 4));
    int64_t rank = mesh->group(Mesh::mp).rank();
    at::Tensor x = shard(whole, mesh, {r, r, {}, {}, blocks});
    std::vector<int64_t> rows = rank == 0 ? std::vector<int64_t>{0, 1, 2, 3, 8, 10}
                                          : std::vector<int64_t>{4, 5, 6, 7, 9, 11};
    CHECK(to_local(x).equal(whole.index_select(0, at::tensor(rows))));
    check_close(full(x), whole, "full");
    check_close(full(redistribute(x, {r, r, {}, {}, Placement::shard(1)})), whole,
                "other dimension");
    check_close(full(redistribute(shard(whole, mesh, {r, r, {}, {}, Placement::reduction()}),
                                  {r, r, {}, {}, blocks})),
                whole, "of a sum");
    auto parts = x.split_with_sizes({8, 2, 2}), expected = whole.split_with_sizes({8, 2, 2});
    for (size_t i = 0; i < parts.size(); ++i) {
      CHECK(placements_of(parts[i])[Mesh::mp] == Placement::shard(0));
      check_close(full(parts[i]), expected[i], "piece");
    }
    CHECK(placements_of(at::cat(parts))[Mesh::mp] == blocks);
    check_close(full(at::cat(parts)), whole, "joined");
    check_close(full(x.t().mm(x)), whole.t().mm(whole), "product");
    check_close(full(x.narrow(0, 3, 6)), whole.narrow(0, 3, 6), "across blocks");
    check_close(full(x.view({6, 6})), whole.view({6, 6}), "view");
    CHECK_THROWS_WITH(shard(whole, mesh, {r, r, {}, Placement::shard_blocks(0, {8, 2})}),
                      doctest::Contains("is not the sum of the blocks"));
  });
}

TEST_CASE("of a block with fewer units than ranks all get the piece") {
  at::Tensor whole = at::arange(12 * 3, at::kDouble).reshape({12, 3});
  on_threads({1, 1, 1, 1, 2, 1}, [&](const std::shared_ptr<const Mesh>& mesh) {
    Placement r, blocks = Placement::shard_blocks(0, {8, 2, 2}, 2);
    at::Tensor x = shard(whole, mesh, {r, r, {}, {}, blocks});
    CHECK(to_local(x).size(0) == (mesh->group(Mesh::mp).rank() == 0 ? 4 : 8));
    check_close(full(x), whole, "full");
    auto parts = x.split_with_sizes({8, 2, 2}), expected = whole.split_with_sizes({8, 2, 2});
    for (size_t i = 0; i < parts.size(); ++i) {
      CHECK(placements_of(parts[i])[Mesh::mp].is_replicated() == (i > 0));
      check_close(full(parts[i]), expected[i], "piece");
    }
    parts[1].mul_(2);  // reaches the tensor
    check_close(full(x), at::cat({expected[0], expected[1] * 2, expected[2]}), "written");
    // As the gradients of keys and values, which all ranks have read.
    at::Tensor sum = shard(expected[1], mesh, {r, r, {}, {}, Placement::reduction()});
    at::Tensor joined = at::cat({parts[0], sum, sum});
    CHECK(placements_of(joined)[Mesh::mp] == blocks);
    check_close(full(joined), at::cat({expected[0], expected[1], expected[1]}), "joined");
  });
}

TEST_CASE("a view keeps the rows of an unevenly split batch where they are") {
  at::Tensor whole = at::arange(5 * 4 * 3, at::kDouble).reshape({5, 4, 3});
  on_threads({2, 2, 1, 1, 1, 1}, [&](const std::shared_ptr<const Mesh>& mesh) {
    at::Tensor x = shard(whole, mesh, placements_on(Mesh::batch, Placement::shard(0)));
    at::Tensor rows = x.view({20, 3}) * 2, back = rows.view({5, 4, 3}) + x;
    for (Mesh::Dim dim : Mesh::dims)
      for (const Traffic& traffic : mesh->group(dim).counters()) CHECK(traffic.count == 0);
    CHECK(to_local(rows).size(0) == to_local(x).size(0) * 4);
    check_close(full(rows), whole.view({20, 3}) * 2, "rows");
    check_close(full(back), whole * 3, "back");
  });
}
