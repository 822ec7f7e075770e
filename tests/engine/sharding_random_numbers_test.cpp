#include <redco/random.h>
#include <redco/sharding.h>

#include "thread_mesh.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <sstream>

using namespace redco;
using redco::testing::on_threads;

namespace {

// Each draws into the tensor or makes one like it.
using Draw = std::function<at::Tensor(const at::Tensor& like, at::Generator rng)>;

const std::vector<std::pair<const char*, Draw>> draws = {
    {"bernoulli_",
     [](const at::Tensor& t, at::Generator rng) { return at::empty_like(t).bernoulli_(0.3, rng); }},
    {"uniform_",
     [](const at::Tensor& t, at::Generator rng) { return at::empty_like(t).uniform_(-1, 2, rng); }},
    {"normal_",
     [](const at::Tensor& t, at::Generator rng) { return at::empty_like(t).normal_(1, 2, rng); }},
    {"random_",
     [](const at::Tensor& t, at::Generator rng) { return at::empty_like(t).random_(0, 9, rng); }},
    {"bernoulli_ of probabilities",
     [](const at::Tensor& t, at::Generator rng) {
       return at::empty_like(t).bernoulli_((t * 0 + 0.4).select(0, 0), rng);
     }},
    {"dropout",
     [](const at::Tensor& t, at::Generator rng) {
       WithRng with_rng(rng);
       return at::dropout(t, 0.5, true);
     }},
    {"randn_like",
     [](const at::Tensor& t, at::Generator rng) {
       WithRng with_rng(rng);
       return at::randn_like(t);
     }},
};

void check_equal(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  if (at::equal(actual, expected)) return;
  std::ostringstream text;
  text << what << ": got\n" << actual << "\nexpected\n" << expected;
  throw std::runtime_error(text.str());
}

}  // namespace

TEST_CASE("random numbers do not depend on the layout") {
  at::Tensor whole = at::arange(5 * 6, at::kDouble).reshape({5, 6}).add_(1);
  for (const auto& [name, draw] : draws) {
    at::Generator plain = make_rng(7);
    at::Tensor first = draw(whole, plain), second = draw(whole, plain);
    REQUIRE_FALSE(at::equal(first, second));
    for (const Mesh::Shape& shape : {Mesh::Shape{1, 1, 1, 1, 2, 1},
                                     {2, 1, 1, 1, 1, 1},
                                     {1, 1, 1, 1, 4, 1},
                                     {2, 1, 1, 1, 2, 1},
                                     {2, 2, 1, 1, 1, 1},
                                     {1, 2, 1, 1, 2, 1},
                                     {1, 1, 1, 2, 2, 1}}) {
      on_threads(shape, [&, name = name, &draw = draw](const std::shared_ptr<const Mesh>& mesh) {
        Placement r, s0 = Placement::shard(0), s1 = Placement::shard(1);
        for (const Placement& a : {r, s0, s1})
          for (const Placement& b : {r, s0, s1, Placement::shard(1, 3)}) {
            if (a == s1 && b.block > 0) continue;
            Placements placements = {a, r, r, r, b};
            if (!b.block && mesh->size(Mesh::dp_replicate) > 1) placements[Mesh::dp_replicate] = a;
            at::Tensor tensor = shard(whole, mesh, placements);
            at::Generator rng = make_rng(7);
            std::string what = std::string(name) + " " + to_string(placements);
            check_equal(full(draw(tensor, rng)), first, what);
            check_equal(full(draw(tensor, rng)), second, what + ", again");
          }
      });
    }
  }
}

TEST_CASE("a generator of LibTorch's own gives each rank its part of what it gives one process") {
  at::Tensor whole = at::zeros({5, 6}, at::kDouble);
  at::Tensor expected = whole.clone().normal_(0, 1, at::detail::createCPUGenerator(3));
  on_threads(1, 3, [&](const std::shared_ptr<const Mesh>& mesh) {
    for (int64_t dim : {0, 1}) {
      at::Tensor tensor = shard(whole, mesh, {Placement(), {}, {}, {}, Placement::shard(dim)});
      check_equal(full(tensor.normal_(0, 1, at::detail::createCPUGenerator(3))), expected,
                  "normal_");
    }
  });
}
