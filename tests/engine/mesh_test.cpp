#include "processes.h"

#include <redco/error.h>
#include <redco/mesh.h>

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

using redco::Group;
using redco::Mesh;
using redco::Processes;
using redco::ReduceOp;

namespace {

// Every collective of the group on one type of numbers, with small whole values.
void check_collectives(Group& group, at::ScalarType type) {
  CAPTURE(type);
  int64_t n = group.size(), rank = group.rank();
  auto of_rank = [&](int64_t r) { return at::arange(6).view({2, 3}).add(r + 1).to(type); };
  auto equal = [&](const at::Tensor& a, const at::Tensor& b) {
    return a.scalar_type() == type && at::equal(a, b.to(type));
  };
  at::Tensor all = at::stack([&] {
    std::vector<at::Tensor> each;
    for (int64_t r = 0; r < n; ++r) each.push_back(of_rank(r));
    return each;
  }());
  CHECK(equal(group.all_gather(of_rank(rank)), all));

  at::Tensor sum = type == at::kBool ? all.any(0) : all.sum(0, false, type);
  at::Tensor mine = of_rank(rank);
  CHECK(group.all_reduce(mine, ReduceOp::sum).is_same(mine));
  CHECK(equal(mine, sum));
  // Row r of rank q is q * n + r.
  auto rows = [&](int64_t q) {
    return at::arange(n).add(q * n).view({n, 1, 1}).expand({n, 2, 1}).contiguous().to(type);
  };
  std::vector<at::Tensor> to_me;
  for (int64_t q = 0; q < n; ++q) to_me.push_back(rows(q)[rank]);
  at::Tensor arrived = at::stack(to_me);
  CHECK(equal(group.all_to_all(rows(rank)), arrived));
  CHECK(equal(group.reduce_scatter(rows(rank), ReduceOp::sum),
              type == at::kBool ? arrived.any(0) : arrived.sum(0, false, type)));
  if (at::isComplexType(type)) {
    if (n > 1) CHECK_THROWS_AS(group.all_reduce(of_rank(rank), ReduceOp::max), redco::Error);
    return;
  }
  CHECK(equal(group.all_reduce(of_rank(rank), ReduceOp::max), all.amax(0)));
  CHECK(equal(group.all_reduce(of_rank(rank), ReduceOp::min), all.amin(0)));
  CHECK(equal(group.reduce_scatter(rows(rank), ReduceOp::max), arrived.amax(0)));
  CHECK(equal(group.reduce_scatter(rows(rank), ReduceOp::min), arrived.amin(0)));
}

constexpr at::ScalarType types[] = {at::kFloat, at::kDouble, at::kHalf,         at::kBFloat16,
                                    at::kLong,  at::kInt,    at::kShort,        at::kChar,
                                    at::kByte,  at::kBool,   at::kComplexFloat, at::kComplexDouble};

}  // namespace

TEST_CASE("one process answers at once, and is counted as nothing") {
  auto mesh = Mesh::make({});
  for (Group* group : {&mesh->group(Mesh::dp), &mesh->group(Mesh::mp), &mesh->world()}) {
    CHECK(group->size() == 1);
    CHECK(group->rank() == 0);
    for (auto type : types) check_collectives(*group, type);
    for (const auto& traffic : group->counters()) CHECK(traffic.count + traffic.bytes == 0);
  }
  CHECK_THROWS_AS(Mesh::make({.n_model_shards = 2}), redco::UsageError);
}

TEST_CASE("every collective on every type, in two, three and four processes") {
  for (int64_t n : {2, 3, 4}) {
    in_processes({.n_processes = n}, [&](Mesh& mesh) {
      CHECK(mesh.size(Mesh::dp) == n);
      CHECK(mesh.size(Mesh::mp) == 1);
      CHECK(mesh.coordinate(Mesh::dp) == mesh.processes().rank);
      for (auto type : types) check_collectives(mesh.group(Mesh::dp), type);
      check_collectives(mesh.world(), at::kFloat);
    });
  }
}

TEST_CASE("a grid: neighbouring ranks share a row of mp") {
  in_processes({.n_processes = 4, .n_model_shards = 2}, [](Mesh& mesh) {
    int64_t rank = mesh.processes().rank;
    CHECK(mesh.coordinate(Mesh::dp) == rank / 2);
    CHECK(mesh.coordinate(Mesh::mp) == rank % 2);
    auto members = [&](Group& group) {
      return group.all_gather(at::scalar_tensor(rank, at::kLong));
    };
    int64_t row = rank / 2 * 2, column = rank % 2;
    CHECK(at::equal(members(mesh.group(Mesh::mp)), at::tensor({row, row + 1})));
    CHECK(at::equal(members(mesh.group(Mesh::dp)), at::tensor({column, column + 2})));
    CHECK(at::equal(members(mesh.world()), at::arange(4)));
    check_collectives(mesh.group(Mesh::mp), at::kFloat);
    check_collectives(mesh.group(Mesh::dp), at::kFloat);
  });
}
