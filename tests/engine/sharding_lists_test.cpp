#include "sharding_cases.h"

#include <doctest/doctest.h>

#include <limits>

using namespace redco;
using redco::testing::Case;
using redco::testing::run_all;
using redco::testing::Tensors;

namespace {

// The arguments as two lists, of which the second elements are the same.
std::pair<Tensors, Tensors> two_lists(const Tensors& t) { return {{t[0], t[1]}, {t[2], t[1]}}; }

Tensors copies(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor * 1);
  return result;
}

constexpr double infinity = std::numeric_limits<double>::infinity();

const std::vector<Case> lists = {
    {"foreach add",
     {{{3, 4}}, {{5}}, {{3, 4}}},
     [](const Tensors& t) {
       auto [a, b] = two_lists(t);
       return at::_foreach_add(a, b, 2);
     },
     2,
     "01,0,01"},
    {"foreach mul by a tensor",
     {{{3, 4}}, {{5}}},
     [](const Tensors& t) { return at::_foreach_mul(t, at::full({}, 3, at::kDouble)); },
     2,
     "01,0"},
    {"foreach mul and div by scalars",
     {{{3, 4}}, {{5}}},
     [](const Tensors& t) -> Tensors {
       return at::_foreach_div(at::_foreach_mul(t, std::vector<at::Scalar>{2, 3}), 0.5);
     },
     2,
     "01,0"},
    {"foreach exp",
     {{{3, 4}}, {{1}}},
     [](const Tensors& t) -> Tensors { return at::_foreach_exp(t); },
     2,
     "01,0"},
    {"foreach lerp",
     {{{3, 4}}, {{5}}, {{3, 4}}},
     [](const Tensors& t) {
       auto [a, b] = two_lists(t);
       return at::_foreach_lerp(a, b, 0.3);
     },
     2,
     "01,0,01"},
    {"foreach addcdiv",
     {{{3, 4}}, {{3, 4}}, {{3, 4}}},
     [](const Tensors& t) -> Tensors { return at::_foreach_addcdiv({t[0]}, {t[1]}, {t[2]}, 0.3); },
     2,
     "01,01,01"},
    {"foreach in place",
     {{{3, 4}}, {{5}}, {{3, 4}}},
     [](const Tensors& t) {
       auto [a, b] = two_lists(t);
       Tensors y = copies(a);
       at::_foreach_mul_(y, 0.5);
       at::_foreach_add_(y, b, 2);
       at::_foreach_sub_(y, b);
       at::_foreach_addcmul_(y, b, b, 2);
       return y;
     },
     2,
     "01,0,01"},
    {"foreach copy and zero",
     {{{3, 4}}, {{5}}, {{3, 4}}},
     [](const Tensors& t) {
       auto [a, b] = two_lists(t);
       Tensors y = copies(a), z = copies(a);
       at::_foreach_copy_(y, b);
       at::_foreach_zero_(z);
       y.insert(y.end(), z.begin(), z.end());
       return y;
     },
     0,
     "01,0,01"},
    {"foreach of plain and split ones",
     {{{3, 4}}, {{5}}},
     [](const Tensors& t) -> Tensors {
       return at::_foreach_mul({at::ones({3, 4}, at::kDouble), t[1]}, t);
     },
     2,
     "01,0"},
    {"foreach of more than 64",
     {{{3, 4}}, {{5}}},
     [](const Tensors& t) -> Tensors {
       Tensors a(100, t[0]), b(100, t[1]);
       a.insert(a.end(), b.begin(), b.end());
       Tensors y = at::_foreach_add(a, a);
       return {y[99], y[100], y[199]};
     },
     1,
     "01,0"},
    {"foreach norm",
     {{{3, 4}}, {{5}}, {{1}}},
     [](const Tensors& t) -> Tensors {
       Tensors all;
       for (double p : {2.0, 1.0, 3.0, infinity, 0.0, -1.0, -infinity})
         for (const at::Tensor& norm : at::_foreach_norm(t, p)) all.push_back(norm);
       return all;
     },
     0,
     "01,0,0"},
    {"foreach norm, gradient",
     {{{3, 4}}, {{5}}, {{1}}},
     [](const Tensors& t) -> Tensors {
       Tensors all;
       for (double p : {2.0, 1.0, 3.0, infinity})
         for (const at::Tensor& norm : at::_foreach_norm(t, p)) all.push_back(norm);
       return all;
     },
     1},
    {"foreach norm of two types",
     {{{3, 4}}, {{5}}},
     [](const Tensors& t) -> Tensors {
       return at::_foreach_norm({t[0].to(at::kFloat), t[1]});
     },
     0,
     "01,0",
     1e-6},
    {"foreach max",
     {{{3, 4}}, {{5}}, {{1}}},
     [](const Tensors& t) -> Tensors { return at::_foreach_max(t); },
     0,
     "01,0,0"},
};

// Parameter, gradient and state, in any placements.
#define STEP(call)                                                   \
  [](const Tensors& t) -> Tensors {                                  \
    Tensors c = copies(t);                                           \
    at::Tensor step = at::full({}, 3, at::kFloat);                   \
    at::Tensor rate = at::full({}, 0.1, at::kDouble);                \
    Tensors p = {c[0]}, g = {c[1]}, m = {c[2]}, v = {c[2].square()}; \
    at::call;                                                        \
    return {p[0], m[0], v[0]};                                       \
  }

const std::vector<Case> optimizers = {
    {"fused adamw",
     {{{3, 4}}, {{3, 4}}, {{3, 4}}},
     STEP(_fused_adamw_(p, g, m, v, {}, {step}, 0.1, 0.9, 0.99, 0.01, 1e-8, false, false)),
     0,
     "01,01,01"},
    {"fused adam, rate in a tensor",
     {{{3, 4}}, {{3, 4}}, {{3, 4}}},
     STEP(_fused_adam_(p, g, m, v, {}, {step}, rate, 0.9, 0.99, 0.01, 1e-8, false, false)),
     0,
     "01,01,01"},
    {"fused sgd",
     {{{3, 4}}, {{3, 4}}, {{3, 4}}},
     STEP(_fused_sgd_(p, g, m, 0.01, 0.9, 0.1, 0, true, false, false)),
     0,
     "01,01,01"},
    {"unscale",
     {{{3, 4}}, {{5}}},
     [](const Tensors& t) -> Tensors {
       Tensors all;
       for (bool overflows : {false, true}) {
         Tensors y = copies(t);
         if (overflows) y[1] = y[1] + at::arange(5, at::kDouble).reciprocal();
         at::Tensor found = at::zeros({1}), scale = at::full({1}, 0.25);
         at::_amp_foreach_non_finite_check_and_unscale_(y, found, scale);
         all.insert(all.end(), y.begin(), y.end());
         all.push_back(found);
       }
       return all;
     },
     0,
     "01,0"},
};

}  // namespace

TEST_CASE("lists") { run_all(lists); }
TEST_CASE("optimizers") { run_all(optimizers); }

TEST_CASE("norms of a list move one number for each, in one collective for a mesh dimension") {
  testing::on_threads({2, 2, 1, 1, 2, 1}, [](const std::shared_ptr<const Mesh>& mesh) {
    Placement r, s = Placement::shard(0);
    auto ones = [&](Placements placements) {
      return shard(at::ones({6, 2}, at::kDouble), mesh, placements);
    };
    Tensors norms = at::_foreach_norm({ones({r, s}), ones({s, s}), ones({r, r, r, r, s})});
    CHECK(at::equal(full(at::stack(norms)), at::full({3}, 12, at::kDouble).sqrt()));
    for (Mesh::Dim dim : Mesh::dims) {
      CHECK(mesh->group(dim).counters()[Group::all_reduce_kind].count == (mesh->size(dim) > 1));
      CHECK(mesh->group(dim).counters()[Group::all_gather_kind].count == 0);
    }
  });
}

TEST_CASE("an optimizer brings gradients to the parameters, and not back") {
  testing::on_threads(2, 1, [](const std::shared_ptr<const Mesh>& mesh) {
    Placement r, s = Placement::shard(0);
    auto at_place = [&](Placement placement) {
      return shard(at::ones({6, 2}, at::kDouble), mesh, {placement, r});
    };
    at::Tensor p = at_place(s), g = at_place(Placement::reduction()), m = at_place(s),
               v = at_place(s), step = at::ones({});
    at::_fused_adamw_({p}, {g}, {m}, {v}, {}, {step}, 0.1, 0.9, 0.99, 0.01, 1e-8, false, false);
    const Group::Counters& counters = mesh->group(Mesh::dp).counters();
    CHECK(counters[Group::reduce_scatter_kind].count == 1);
    CHECK(counters[Group::all_gather_kind].count == 0);
    CHECK(counters[Group::all_reduce_kind].count == 0);
    CHECK(placements_of(g)[Mesh::dp].is_partial());
  });
}
