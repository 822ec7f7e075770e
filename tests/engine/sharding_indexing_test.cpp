#include "sharding_cases.h"

#include <doctest/doctest.h>

using namespace redco;
using redco::testing::Case;
using redco::testing::Input;
using redco::testing::longs;
using redco::testing::run_all;
using redco::testing::Tensors;

namespace {

using Indices = c10::List<std::optional<at::Tensor>>;

Indices list(std::vector<std::optional<at::Tensor>> tensors) { return Indices(tensors); }

const Input rows = longs({3, 0, 4, 3}, {4});
const Input picks = longs({3, 0, 4, 3, 1, 2}, {3, 2});
const Input places = longs({4, 1, 0, 3, 2, 4}, {3, 2});  // no place twice in a row

const std::vector<Case> reads = {
    {"gather",
     {{{3, 5}}, picks},
     [](const Tensors& t) -> Tensors { return {t[0].gather(1, t[1])}; },
     2,
     "01,01"},
    {"gather from a longer tensor",
     {{{4, 5}}, picks},
     [](const Tensors& t) -> Tensors { return {t[0].gather(1, t[1])}; },
     2,
     "1,1"},
    {"gather from few",
     {{{3, 1}}, longs({0, 0, 0}, {3, 1})},
     [](const Tensors& t) -> Tensors { return {t[0].gather(1, t[1])}; },
     2,
     "01,01"},
    {"take_along_dim",
     {{{3, 5}}, picks},
     [](const Tensors& t) -> Tensors { return {t[0].take_along_dim(t[1], 1)}; },
     2,
     "01,01"},
    {"index_select",
     {{{5, 3}}, rows},
     [](const Tensors& t) -> Tensors { return {t[0].index_select(0, t[1])}; },
     2,
     "01,0"},
    {"index",
     {{{5, 3}}, rows},
     [](const Tensors& t) -> Tensors { return {t[0].index(list({t[1]}))}; },
     2,
     "01,0"},
    {"index from behind",
     {{{5, 3}}, longs({-1, 0, -5, 2}, {4})},
     [](const Tensors& t) -> Tensors { return {t[0].index(list({t[1]}))}; },
     2,
     "01,0"},
    {"index by two, apart",
     {{{5, 2, 5}}, rows, rows},
     [](const Tensors& t) -> Tensors {
       return {t[0].index(list({t[1], std::nullopt, t[2]}))};
     },
     2,
     "012,0,0"},
    {"index by two, broadcast",
     {{{2, 5, 5}}, longs({3, 4}, {2, 1}), rows},
     [](const Tensors& t) -> Tensors {
       return {t[0].index(list({std::nullopt, t[1], t[2]}))};
     },
     2,
     "012,0,0"},
    {"index of few",
     {{{1, 3}}, longs({0, 0}, {2})},
     [](const Tensors& t) -> Tensors { return {t[0].index(list({t[1]}))}; },
     2,
     "01,0"},
    {"index by a mask",
     {{{5, 3}}},
     [](const Tensors& t) -> Tensors { return {t[0].index(list({t[0] > 0}))}; },
     1},
    {"masked_select",
     {{{5, 3}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].masked_select(t[0] > 0), (t[0] > 0).nonzero()};
     },
     1},
    {"searchsorted",
     {{{7}}, {{3, 4}}},
     [](const Tensors& t) -> Tensors {
       at::Tensor sorted = std::get<0>(t[0].sort());
       return {at::searchsorted(sorted, t[1]), at::bucketize(t[1], sorted)};
     },
     0,
     ",01"},
    {"take", {{{3, 5}}, rows}, [](const Tensors& t) -> Tensors { return {t[0].take(t[1])}; }, 1},
};

const std::vector<Case> writes = {
    {"scatter",
     {{{3, 5}}, places, {{3, 2}}},
     [](const Tensors& t) -> Tensors { return {t[0].scatter(1, t[1], t[2])}; },
     2,
     "01,0,0"},
    {"scatter a number",
     {{{3, 5}}, places},
     [](const Tensors& t) -> Tensors { return {t[0].scatter(1, t[1], 2)}; },
     2,
     "01,0"},
    {"scatter_add",
     {{{3, 5}}, picks, {{3, 2}}},
     [](const Tensors& t) -> Tensors { return {t[0].scatter_add(1, t[1], t[2])}; },
     2,
     "01,01,01"},
    {"scatter_add, in place",
     {{{3, 5}}, picks, {{3, 2}}},
     [](const Tensors& t) -> Tensors { return {(t[0] * 2).scatter_add_(1, t[1], t[2])}; },
     2,
     "01,01,01"},
    {"scatter into a plain tensor",
     {picks, {{3, 2}}},
     [](const Tensors& t) -> Tensors {
       return {at::zeros({3, 5}, at::kDouble).scatter_add_(1, t[0], t[1].detach()), t[1] * 2};
     },
     1,
     "01,01"},
    {"scatter, reduced",
     {{{3, 5}}, picks, {{3, 2}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].scatter_reduce(1, t[1], t[2], "amax"),
               t[0].scatter_reduce(1, t[1], t[2], "sum", false)};
     },
     1,
     "01,0,0"},
    {"index_add",
     {{{5, 3}}, rows, {{4, 3}}},
     [](const Tensors& t) -> Tensors { return {t[0].index_add(0, t[1], t[2], 2)}; },
     2,
     "01,0,01"},
    {"index_copy",
     {{{5, 3}}, longs({3, 0, 4}, {3}), {{3, 3}}},
     [](const Tensors& t) -> Tensors { return {t[0].index_copy(0, t[1], t[2])}; },
     2,
     "01,,1"},
    {"index_fill",
     {{{5, 3}}, rows},
     [](const Tensors& t) -> Tensors { return {t[0].index_fill(0, t[1], 2)}; },
     2,
     "01,"},
    {"index_put",
     {{{5, 3}}, longs({3, 0, 4}, {3}), {{3, 3}}},
     [](const Tensors& t) -> Tensors { return {t[0].index_put(list({t[1]}), t[2])}; },
     2,
     "01,,1"},
    {"index_put, adding up",
     {{{5, 3}}, rows, {{4, 3}}},
     [](const Tensors& t) -> Tensors { return {t[0].index_put(list({t[1]}), t[2], true)}; },
     2,
     "01,0,01"},
    {"index_put, in place, by two, broadcast",
     {{{2, 5, 5}}, rows, rows, {{2, 1}}},
     [](const Tensors& t) -> Tensors {
       return {(t[0] * 2).index_put_(list({std::nullopt, t[1], t[2]}), t[3])};
     },
     2,
     "012,,,0"},
    {"masked_scatter",
     {{{3, 4}}, {{12}}},
     [](const Tensors& t) -> Tensors { return {t[0].masked_scatter(t[0] > 0, t[1])}; },
     1},
    {"one_hot", {rows}, [](const Tensors& t) -> Tensors { return {at::one_hot(t[0], 5)}; }, 0, "0"},
};

}  // namespace

TEST_CASE("reading by an index") { run_all(reads); }
TEST_CASE("writing by an index") { run_all(writes); }

TEST_CASE("an index that no rank holds fails, as it does on one process") {
  redco::testing::on_threads(1, 2, [](const std::shared_ptr<const Mesh>& mesh) {
    at::Tensor table =
        shard(at::ones({5, 2}, at::kDouble), mesh, {Placement(), {}, {}, {}, Placement::shard(0)});
    for (int64_t outside : {5, -6}) {
      at::Tensor index = at::tensor({int64_t{1}, outside}, at::kLong);
      CHECK_THROWS_WITH_AS(at::embedding(table, index), doctest::Contains("out of range"),
                           std::exception);
      CHECK_THROWS_WITH_AS(table.index_select(0, index), doctest::Contains("out of range"),
                           std::exception);
      CHECK_THROWS_WITH_AS(table.index(list({index})), doctest::Contains("out of range"),
                           std::exception);
    }
  });
}
