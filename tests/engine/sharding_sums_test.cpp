// When sums to come are made: as late and as few as is cheaper.

#include <redco/sharding.h>

#include "thread_mesh.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

using namespace redco;
using redco::testing::on_threads;

namespace {

using MeshPointer = std::shared_ptr<const Mesh>;

const Placement whole = {}, sum = Placement::reduction();

void over_model(const std::function<void(const MeshPointer&)>& body) {
  for (int64_t n : {2, 3}) on_threads({1, 1, 1, 1, n, 1}, body);
}

at::Tensor numbers(at::IntArrayRef sizes) {
  return at::arange(1, 1 + c10::multiply_integers(sizes), at::kDouble).reshape(sizes) / 10;
}

at::Tensor placed(const at::Tensor& tensor, const MeshPointer& mesh, const Placement& placement) {
  return shard(tensor, mesh, {whole, {}, {}, {}, placement});
}

Placement placement_of(const at::Tensor& tensor) { return placements_of(tensor)[Mesh::mp]; }

void same(const at::Tensor& actual, const at::Tensor& expected) {
  CHECK_MESSAGE(at::allclose(full(actual), expected, 1e-12, 1e-12), full(actual), " is not ",
                expected);
}

/// What `body` sends over model shards.
Traffic sent(const MeshPointer& mesh, const std::function<void()>& body) {
  auto total = [&] {
    Traffic all;
    for (const Traffic& kind : mesh->group(Mesh::mp).counters()) {
      all.count += kind.count;
      all.bytes += kind.bytes;
    }
    return all;
  };
  const Traffic before = total();
  body();
  const Traffic after = total();
  return {after.count - before.count, after.bytes - before.bytes};
}

}  // namespace

TEST_CASE("a small sum is made once for all its views") {
  const at::Tensor given = numbers({4, 3, 5});
  over_model([&](const MeshPointer& mesh) {
    const at::Tensor x = placed(given, mesh, sum);
    std::vector<at::Tensor> squares;
    const Traffic traffic = sent(mesh, [&] {
      for (int64_t step = 0; step < 3; ++step) squares.push_back(x.select(1, step).square());
    });
    CHECK(traffic.count == 1);
    for (int64_t step = 0; step < 3; ++step)
      same(squares[size_t(step)], given.select(1, step).square());
    CHECK(placement_of(x).is_replicated());
    same(x, given);
  });
}

TEST_CASE("of a large sum only the part that is read is made") {
  const at::Tensor given = at::ones({1 << 15, 5}, at::kDouble);
  over_model([&](const MeshPointer& mesh) {
    const at::Tensor x = placed(given, mesh, sum);
    at::Tensor row;
    const Traffic traffic = sent(mesh, [&] { row = x.select(0, 7).exp(); });
    CHECK(traffic.bytes <= 2 * 5 * 8);
    CHECK(placement_of(x).is_partial());
    same(row, given.select(0, 7).exp());
  });
}

TEST_CASE("outputs of experts that are added to what is whole are one sum") {
  const at::Tensor first = numbers({2, 5}), second = numbers({3, 5}) * 2;
  const at::Tensor at_first = at::tensor({0, 3}), at_second = at::tensor({1, 3, 2});
  const at::Tensor start = numbers({4, 5});
  over_model([&](const MeshPointer& mesh) {
    at::Tensor all;
    const Traffic traffic = sent(mesh, [&] {
      all = placed(start, mesh, whole).index_add(0, at_first, placed(first, mesh, sum));
      all = all.index_add(0, at_second, placed(second, mesh, sum));
    });
    CHECK(traffic.count == 0);
    CHECK(placement_of(all).is_partial());
    same(all, start.index_add(0, at_first, first).index_add(0, at_second, second));
  });
}

TEST_CASE("a row that is added to a large table is summed first") {
  const at::Tensor table = at::zeros({1000, 5}, at::kDouble), row = numbers({1, 5});
  over_model([&](const MeshPointer& mesh) {
    const at::Tensor written =
        placed(table, mesh, whole).index_add(0, at::tensor({7}), placed(row, mesh, sum));
    CHECK(placement_of(written).is_replicated());
    same(written, table.index_add(0, at::tensor({7}), row));
  });
}

TEST_CASE("zeros around a sum leave it one, unless they make a large tensor larger") {
  const at::Tensor rows = numbers({4, 5}), row = numbers({5});
  over_model([&](const MeshPointer& mesh) {
    const at::Tensor shifted = at::constant_pad_nd(placed(rows, mesh, sum), {0, 0, 1, -1});
    CHECK(placement_of(shifted).is_partial());
    same(shifted, at::constant_pad_nd(rows, {0, 0, 1, -1}));
    const at::Tensor padded = at::constant_pad_nd(placed(rows, mesh, sum), {0, 0, 1, -1}, 3);
    same(padded, at::constant_pad_nd(rows, {0, 0, 1, -1}, 3));
    for (int64_t n : {3, 1 << 14}) {
      const at::Tensor among = at::select_backward(placed(row, mesh, sum), {n, 5}, 0, 1);
      CHECK(placement_of(among).is_partial() == (n == 3));
      same(among, at::select_backward(row, {n, 5}, 0, 1));
    }
  });
}

TEST_CASE("a sum is made before it is repeated, and after it is resampled to less") {
  const at::Tensor row = numbers({2, 1}), images = numbers({1, 3, 4, 4});
  over_model([&](const MeshPointer& mesh) {
    const at::Tensor repeated = placed(row, mesh, sum).expand({2, 6});
    CHECK(placement_of(repeated).is_replicated());
    same(repeated, row.expand({2, 6}));
    CHECK(placement_of(placed(row, mesh, sum).expand({1, 2, 1})).is_partial());

    const at::Tensor x = placed(images, mesh, sum);
    const at::Tensor pooled = at::avg_pool2d(x, 2);
    CHECK(placement_of(pooled).is_partial());
    same(pooled, at::avg_pool2d(images, 2));
    const at::Tensor gradient = at::upsample_nearest2d_backward(x, {4, 4}, {1, 3, 2, 2});
    CHECK(placement_of(gradient).is_partial());
    same(gradient, at::upsample_nearest2d_backward(images, {4, 4}, {1, 3, 2, 2}));
    const at::Tensor larger = at::upsample_nearest2d(x, {8, 8});
    CHECK(placement_of(larger).is_replicated());
    same(larger, at::upsample_nearest2d(images, {8, 8}));
    const at::Tensor largest = at::max_pool2d(x, 2);
    same(largest, at::max_pool2d(images, 2));
    const at::Tensor in_16_bits = placed(images.to(at::kBFloat16), mesh, sum);
    CHECK(placement_of(at::avg_pool2d(in_16_bits, 2)).is_replicated());
  });
}

TEST_CASE("nothing is moved to leave a sum") {
  const at::Tensor x = numbers({6, 4}), w = numbers({4, 12});
  over_model([&](const MeshPointer& mesh) {
    // The weight could be moved instead, for as many bytes with two ranks.
    const at::Tensor y =
        at::mm(placed(x, mesh, Placement::shard(1)), placed(w, mesh, Placement::shard(1)));
    CHECK(placement_of(y) == Placement::shard(1));
    same(y, at::mm(x, w));
  });
}
