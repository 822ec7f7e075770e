#include "sharding_cases.h"

#include <doctest/doctest.h>

using namespace redco;
using redco::testing::Case;
using redco::testing::run_all;
using redco::testing::Tensors;

namespace {

Tensors both(std::tuple<at::Tensor, at::Tensor> pair) {
  return {std::get<0>(pair), std::get<1>(pair)};
}

const std::vector<Case> joins = {
    {"cat",
     {{{3, 2}}, {{3, 4}}},
     [](const Tensors& t) -> Tensors {
       return {at::cat({t[0], t[1]}, 1)};
     },
     2,
     "0,0"},
    {"cat with a plain tensor",
     {{{3, 2}}},
     [](const Tensors& t) -> Tensors {
       return {at::cat({t[0], at::ones({3, 1}, at::kDouble), t[0]}, 1)};
     },
     2,
     "0"},
    {"cat of alike tensors and split again",
     {{{3, 4}}},
     [](const Tensors& t) -> Tensors {
       at::Tensor all = at::cat({t[0], t[0] * 2, t[0] * 3}, 1);
       return {all.split(4, 1)[1].exp(), all};
     },
     2,
     "01"},
    {"cat with nothing",
     {{{3, 2}}},
     [](const Tensors& t) -> Tensors {
       return {at::cat({at::zeros({0}, at::kDouble), t[0]})};
     },
     2,
     "1"},
    {"stack",
     {{{3, 2}}, {{3, 2}}},
     [](const Tensors& t) -> Tensors {
       return {at::stack({t[0], t[1]}), at::stack({t[0], t[1]}, -1)};
     },
     2,
     "01,01"},
};

const std::vector<Case> padded = {
    {"flip", {{{3, 4}}}, [](const Tensors& t) -> Tensors { return {t[0].flip(1)}; }, 2, "0"},
    {"roll", {{{3, 4}}}, [](const Tensors& t) -> Tensors { return {t[0].roll(1, 1)}; }, 2, "0"},
    {"roll of all", {{{3, 4}}}, [](const Tensors& t) -> Tensors { return {t[0].roll(3)}; }},
    {"repeat",
     {{{3, 4}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].repeat({2, 1, 3}), t[0].repeat({2, 1, 1})};
     },
     2,
     "0"},
    {"repeat_interleave",
     {{{3, 4}}},
     [](const Tensors& t) -> Tensors { return {t[0].repeat_interleave(2, 1)}; },
     2,
     "0"},
    {"tril and triu",
     {{{2, 5, 4}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].tril(), t[0].triu(1), t[0].tril(-2)};
     },
     2,
     "012"},
    {"diagonal",
     {{{2, 5, 4}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].diagonal(1, 1, 2) * 2, t[0].diagonal(0, 1, 2)};
     },
     2,
     "0"},
    {"diag_embed",
     {{{3, 4}}},
     [](const Tensors& t) -> Tensors { return {at::diag_embed(t[0])}; },
     2,
     "0"},
    {"unfold",
     {{{3, 7}}},
     [](const Tensors& t) -> Tensors { return {t[0].unfold(1, 3, 2) * 2}; },
     2,
     "0"},
    {"pad",
     {{{3, 4}}},
     [](const Tensors& t) -> Tensors {
       return {at::constant_pad_nd(t[0], {1, 2}), at::constant_pad_nd(t[0], {0, -1}, 3)};
     },
     2,
     "0"},
    {"slice_scatter",
     {{{3, 5}}, {{3, 2}}},
     [](const Tensors& t) -> Tensors { return {t[0].slice_scatter(t[1], 1, 1, 3)}; },
     2,
     "0,0"},
    {"select_scatter",
     {{{3, 5}}, {{3}}},
     [](const Tensors& t) -> Tensors { return {t[0].select_scatter(t[1], 1, 2)}; },
     2,
     "0,0"},
    {"as_strided, a part of the columns",
     {{{3, 4}}},
     [](const Tensors& t) -> Tensors {
       at::Tensor x = t[0] * 2;
       return {x.as_strided({3, 2}, {4, 1}, 1).exp(), x.as_strided({4, 3}, {1, 4}, 0)};
     },
     1,
     "0"},
    {"as_strided, any",
     {{{3, 4}}},
     [](const Tensors& t) -> Tensors {
       return {(t[0] * 2).as_strided({4, 2}, {2, 3}, 1).exp()};
     },
     1},
    {"new tensors",
     {{{3, 4}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].new_zeros({3, 4}) + t[0], t[0].new_ones({2, 5}), t[0].new_full({4}, 2)};
     },
     1,
     "01"},
};

const std::vector<Case> along = {
    {"sort",
     {{{3, 5}}},
     [](const Tensors& t) -> Tensors { return both(t[0].sort(1, true)); },
     2,
     "0"},
    {"argsort",
     {{{3, 5}}},
     [](const Tensors& t) -> Tensors { return {t[0].argsort(true, 1, true)}; },
     0,
     "0"},
    {"topk", {{{3, 5}}}, [](const Tensors& t) -> Tensors { return both(t[0].topk(2)); }, 2, "0"},
    {"max over one",
     {{{3, 5}}},
     [](const Tensors& t) -> Tensors { return both(t[0].max(1)); },
     2,
     "0"},
    {"min over one, kept",
     {{{3, 5}}},
     [](const Tensors& t) -> Tensors { return both(t[0].min(1, true)); },
     2,
     "0"},
    {"kthvalue",
     {{{3, 5}}},
     [](const Tensors& t) -> Tensors { return both(t[0].kthvalue(2, 1)); },
     2,
     "0"},
    {"median",
     {{{3, 5}}},
     [](const Tensors& t) -> Tensors { return both(t[0].median(1)); },
     2,
     "0"},
    {"median of all", {{{3, 5}}}, [](const Tensors& t) -> Tensors { return {t[0].median()}; }, 1},
    {"one quantile of all",
     {{{3, 5}}},
     [](const Tensors& t) -> Tensors { return {t[0].quantile(0.3)}; },
     1},
    {"one quantile",
     {{{3, 5}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].quantile(at::full({1}, 0.3, at::dtype(t[0].dtype())), 1),
               t[0].nanquantile(0.5, 0, true)};
     },
     1},
    {"extremes and their places along parts",
     {{{3, 5}}, redco::testing::longs({3, 1, 6, 6, 4, 6}, {2, 3})},
     [](const Tensors& t) -> Tensors {
       const auto [values, places] = t[0].max(0);
       const auto [least, first] = t[1].min(1, true);
       const at::Tensor odd = at::where(t[0] > 0.5, std::nan(""), t[0]);
       return {t[0].argmax(1), t[0].argmin(0, true),
               values,         places,
               least,          first,
               t[1].argmax(1), odd.argmax(1),
               odd.argmin(0),  std::get<0>(odd.max(1)).isnan()};
     },
     0,
     "01,01"},
    {"argmax of all", {{{3, 5}}}, [](const Tensors& t) -> Tensors { return {t[0].argmax()}; }, 0},
    {"cumsum", {{{3, 5}}}, [](const Tensors& t) -> Tensors { return {t[0].cumsum(1)}; }, 2, "0"},
    {"cumsum of parts",
     {{{3, 5}}, redco::testing::longs({3, 1, 2, 5, 4, 6}, {2, 3})},
     [](const Tensors& t) -> Tensors {
       return {t[0].cumsum(1), t[0].cumsum(0, at::kFloat), t[1].cumsum(1), t[1].gt(2).cumsum(0)};
     },
     0,
     "01,01",
     1e-6},
    {"cumsum in place",
     {{{3, 5}}},
     [](const Tensors& t) -> Tensors { return {t[0].clone().cumsum_(1)}; },
     0,
     "0"},
    {"Fourier transforms",
     {{{3, 4, 6}}},
     [](const Tensors& t) -> Tensors {
       const at::Tensor waves = at::fft_rfft(t[0], std::nullopt, 2);
       return {at::fft_irfft(waves * 2, 6, 2),
               at::view_as_real(at::fft_fft(waves, std::nullopt, 1))};
     },
     2,
     "0"},
    {"cumprod", {{{3, 5}}}, [](const Tensors& t) -> Tensors { return {t[0].cumprod(1)}; }, 2, "0"},
    {"logcumsumexp",
     {{{3, 5}}},
     [](const Tensors& t) -> Tensors { return {t[0].logcumsumexp(1)}; },
     2,
     "0"},
    {"cummax",
     {{{3, 5}}},
     [](const Tensors& t) -> Tensors { return both(t[0].cummax(1)); },
     2,
     "0"},
    {"glu", {{{3, 4}}}, [](const Tensors& t) -> Tensors { return {at::glu(t[0], 1)}; }, 2, "0"},
};

const std::vector<Case> statistics = {
    {"prod",
     {{{3, 5}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].prod(1), t[0].prod(), t[0].prod(0, true)};
     },
     1},
    {"prod, forward",
     {{{3, 5}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].prod(1), t[0].prod(), t[0].prod(0, true)};
     },
     0,
     "01"},
    {"variance",
     {{{3, 5}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].var(1), t[0].var(false), t[0].var(0, true, true)};
     },
     2,
     "01"},
    {"standard deviation",
     {{{3, 5}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].std(1), t[0].std(false), t[0].std(0, true, true)};
     },
     2,
     "01"},
    {"variance and mean",
     {{{3, 5}}},
     [](const Tensors& t) -> Tensors {
       Tensors all = both(at::var_mean(t[0], at::OptionalIntArrayRef{1}, 0));
       for (const at::Tensor& more : both(at::std_mean(t[0], true))) all.push_back(more);
       return all;
     },
     2,
     "01"},
    {"extremes",
     {{{3, 5}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].amax(1), t[0].amin(0, true), t[0].max(), t[0].min(), t[0].amax()};
     },
     1,
     "01"},
    {"extremes of few",
     {{{1, 3}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].amax(0), t[0].amin(1, true), t[0].max()};
     },
     1,
     "01"},
    {"extremes of integers",
     {{{1, 3}}},
     [](const Tensors& t) -> Tensors {
       at::Tensor x = (t[0] * 10).to(at::kLong);
       return {x.amax(0),
               x.amin(1),
               x.max(),
               (x > 0).amax(0),
               std::get<1>(x.aminmax()),
               std::get<0>(t[0].aminmax(1))};
     },
     0,
     "01"},
    {"the larger of two",
     {{{3, 5}}, {{5}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].max(t[1]), t[0].minimum(t[1])};
     },
     2,
     "01,0"},
    {"norms over all",
     {{{4, 8}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].norm(), t[0].norm(1), at::linalg_vector_norm(t[0], INFINITY),
               at::linalg_vector_norm(t[0], 0), t[0].norm(2, 1)};
     },
     2,
     "01"},
    {"logsumexp over all",
     {{{3, 5}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].logsumexp(at::IntArrayRef{0, 1}), t[0].logsumexp(0, true)};
     },
     2,
     "01"},
};

}  // namespace

TEST_CASE("joining") { run_all(joins); }
TEST_CASE("padding and cutting") { run_all(padded); }
TEST_CASE("along a dimension") { run_all(along); }
TEST_CASE("statistics") { run_all(statistics); }
