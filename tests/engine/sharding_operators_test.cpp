#include "sharding_cases.h"

#include <ATen/core/grad_mode.h>
#include <doctest/doctest.h>

using namespace redco;
using redco::testing::Case;
using redco::testing::run_all;
using redco::testing::Tensors;

namespace {

#define UNARY(f)                                                                          \
  {                                                                                       \
#f, {{{3, 4 } } }, [](const Tensors& t) -> Tensors { return {at::f(t[0])}; }, 2, "01" \
  }

const std::vector<Case> pointwise = {
    UNARY(neg),
    UNARY(exp),
    UNARY(gelu),
    UNARY(silu),
    UNARY(relu),
    UNARY(tanh),
    UNARY(sigmoid),
    UNARY(abs),
    UNARY(clone),
    UNARY(sin),
    {"pow", {{{3, 4}}}, [](const Tensors& t) -> Tensors { return {t[0].pow(3)}; }, 2, "01"},
    {"add",
     {{{3, 4}}, {{3, 4}}},
     [](const Tensors& t) -> Tensors { return {t[0] + t[1]}; },
     2,
     "01,01"},
    {"add, broadcast",
     {{{3, 4}}, {{4}}},
     [](const Tensors& t) -> Tensors { return {t[0] + t[1]}; },
     2,
     "01,0"},
    {"add, column",
     {{{3, 4}}, {{3, 1}}},
     [](const Tensors& t) -> Tensors { return {t[0] + t[1]}; },
     2,
     "01,0"},
    {"mul",
     {{{5, 4}}, {{5, 4}}},
     [](const Tensors& t) -> Tensors { return {t[0] * t[1]}; },
     2,
     "01,01"},
    {"square by mul",
     {{{5, 4}}},
     [](const Tensors& t) -> Tensors { return {t[0] * t[0]}; },
     2,
     "01"},
    {"number minus tensor",
     {{{5, 4}}},
     [](const Tensors& t) -> Tensors { return {2 - t[0]}; },
     2,
     "01"},
    {"mul, outer",
     {{{5, 1}}, {{1, 3}}},
     [](const Tensors& t) -> Tensors { return {t[0] * t[1]}; },
     2,
     "0,1"},
    {"where",
     {{{3, 4}}, {{3, 4}}},
     [](const Tensors& t) -> Tensors { return {at::where(t[0] > 0, t[0], t[1])}; },
     2,
     "01,01"},
    {"lerp",
     {{{3, 4}}, {{3, 4}}},
     [](const Tensors& t) -> Tensors { return {t[0].lerp(t[1], 0.3)}; },
     2,
     "01,01"},
    {"masked_fill",
     {{{3, 4}}},
     [](const Tensors& t) -> Tensors { return {t[0].masked_fill(t[0] > 0, 2)}; },
     2,
     "01"},
    {"to another type",
     {{{3, 4}}},
     [](const Tensors& t) -> Tensors { return {t[0].to(at::kFloat)}; },
     1,
     "01",
     1e-6},
    {"smaller than the mesh",
     {{{1, 1}}, {{1, 3}}},
     [](const Tensors& t) -> Tensors { return {t[0] * t[1]}; },
     2},
    {"in place",
     {{{3, 4}}, {{3, 4}}},
     [](const Tensors& t) -> Tensors { return {(t[0] * 2).mul_(t[1]).add_(t[1])}; },
     2,
     "01,01"},
};

const std::vector<Case> products = {
    {"mm",
     {{{3, 4}}, {{4, 5}}},
     [](const Tensors& t) -> Tensors { return {t[0].mm(t[1])}; },
     2,
     "01,01"},
    {"addmm",
     {{{5}}, {{3, 4}}, {{4, 5}}},
     [](const Tensors& t) -> Tensors { return {at::addmm(t[0], t[1], t[2])}; },
     2,
     "0,01,01"},
    {"linear",
     {{{2, 3, 4}}, {{6, 4}}, {{6}}},
     [](const Tensors& t) -> Tensors { return {at::linear(t[0], t[1], t[2])}; },
     2,
     "02,01,0"},
    {"linear without bias",
     {{{2, 3, 4}}, {{6, 4}}},
     [](const Tensors& t) -> Tensors { return {at::linear(t[0], t[1])}; },
     2,
     "02,01"},
    {"bmm",
     {{{2, 3, 4}}, {{2, 4, 5}}},
     [](const Tensors& t) -> Tensors { return {t[0].bmm(t[1])}; },
     2,
     "012,012"},
    {"matmul of heads",
     {{{2, 4, 3, 2}}, {{2, 4, 2, 3}}},
     [](const Tensors& t) -> Tensors { return {t[0].matmul(t[1])}; },
     2,
     "0123,0123"},
    {"matmul of uneven heads",
     {{{3, 5, 3, 2}}, {{3, 5, 2, 3}}},
     [](const Tensors& t) -> Tensors { return {t[0].matmul(t[1]).exp().transpose(1, 2)}; },
     2},
    {"matmul with a transpose",
     {{{2, 3, 4}}, {{2, 5, 4}}},
     [](const Tensors& t) -> Tensors { return {t[0].matmul(t[1].transpose(1, 2))}; },
     2,
     "012,012"},
    {"mm, out",
     {{{3, 4}}, {{4, 5}}},
     [](const Tensors& t) -> Tensors {
       c10::NoGradGuard no_grad;
       at::Tensor out = at::zeros_like(t[0]).mm(at::zeros_like(t[1]));
       at::mm_out(out, t[0], t[1]);
       return {out};
     },
     0,
     "01,01"},
    {"mv",
     {{{3, 4}}, {{4}}},
     [](const Tensors& t) -> Tensors { return {t[0].mv(t[1])}; },
     2,
     "01,0"},
    {"dot", {{{5}}, {{5}}}, [](const Tensors& t) -> Tensors { return {t[0].dot(t[1])}; }, 2, "0,0"},
    {"einsum",
     {{{2, 3, 4}}, {{4, 5}}},
     [](const Tensors& t) -> Tensors {
       return {at::einsum("bij,jk->bki", {t[0], t[1]})};
     },
     2,
     "02,01"},
};

const std::vector<Case> reductions = {
    {"sum", {{{3, 4}}}, [](const Tensors& t) -> Tensors { return {t[0].sum()}; }, 2, "01"},
    {"sum over one",
     {{{3, 4}}},
     [](const Tensors& t) -> Tensors { return {t[0].sum(1)}; },
     2,
     "01"},
    {"sum kept",
     {{{3, 4}}},
     [](const Tensors& t) -> Tensors { return {t[0].sum(0, true)}; },
     2,
     "01"},
    {"mean",
     {{{3, 5}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].mean(), t[0].mean(1), t[0].mean(-2, true)};
     },
     2,
     "01"},
    {"amax",
     {{{3, 5}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].amax(1), t[0].amax(0, true)};
     },
     1,
     "01"},
    {"logsumexp",
     {{{3, 5}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].logsumexp(1), t[0].logsumexp(0)};
     },
     2,
     "01"},
    {"norm",
     {{{3, 5}}},
     [](const Tensors& t) -> Tensors {
       return {at::linalg_vector_norm(t[0]), at::linalg_vector_norm(t[0], 3, {1})};
     },
     2,
     "01"},
    {"any and all",
     {{{3, 5}}},
     [](const Tensors& t) -> Tensors {
       return {(t[0] > 1).any(), (t[0] > -1).all(1)};
     },
     0,
     "01"},
};

const std::vector<Case> views = {
    {"transpose",
     {{{3, 4}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].t(), t[0].transpose(0, 1).contiguous()};
     },
     2,
     "01"},
    {"permute",
     {{{2, 3, 4}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].permute({2, 0, 1}) * 2};
     },
     2,
     "012"},
    {"heads",
     {{{2, 3, 8}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].view({2, 3, 4, 2}).transpose(1, 2).exp().transpose(1, 2).reshape({2, 3, 8})};
     },
     2,
     "02"},
    {"flatten",
     {{{4, 3, 2}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].flatten(0, 1).exp(), t[0].flatten(), t[0].flatten(1).exp()};
     },
     2,
     "0"},
    {"flatten an uneven batch",
     {{{5, 3, 2}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].reshape({15, 2}).exp().view({5, 3, 2})};
     },
     2,
     "02"},
    {"unsqueeze",
     {{{3, 4}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].unsqueeze(0) * 2, t[0].unsqueeze(-1) * 2, t[0].unsqueeze(1)};
     },
     2,
     "01"},
    {"squeeze",
     {{{3, 1, 4}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].squeeze(1), t[0].squeeze(), t[0].squeeze(0)};
     },
     2,
     "02"},
    {"expand",
     {{{3, 1, 4}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].expand({3, 5, 4}).exp(), t[0].expand({2, 3, 2, -1})};
     },
     2,
     "02"},
    {"select",
     {{{3, 4, 2}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].select(1, 2) * 3, t[0].select(1, -1)};
     },
     2,
     "02"},
    {"slice",
     {{{3, 4, 2}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].slice(1, 1, 3).exp(), t[0].slice(1, 0, -1)};
     },
     2,
     "02"},
    {"slice of all",
     {{{3, 4, 2}}},
     [](const Tensors& t) -> Tensors { return {t[0].slice(1, 0, 9).exp()}; },
     2,
     "012"},
    {"split", {{{3, 6}}}, [](const Tensors& t) { return t[0].split(2, 1); }, 2, "0"},
    {"chunk",
     {{{3, 6}}},
     [](const Tensors& t) -> Tensors {
       auto c = t[0].chunk(3, 1);
       return {c[0] * c[1] + c[2]};
     },
     2,
     "0"},
    {"split by sizes",
     {{{3, 6}}},
     [](const Tensors& t) {
       return t[0].split_with_sizes({1, 3, 2}, 1);
     },
     2,
     "0"},
    {"unbind",
     {{{3, 4}}},
     [](const Tensors& t) -> Tensors {
       auto p = t[0].unbind(1);
       return {p[0] * p[3]};
     },
     2,
     "0"},
    {"view as is",
     {{{3, 4}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].view({3, 4}), t[0].view({1, 3, 4}), t[0].view({3, 1, 4})};
     },
     2,
     "01"},
};

}  // namespace

TEST_CASE("pointwise") { run_all(pointwise); }
TEST_CASE("products") { run_all(products); }
TEST_CASE("reductions") { run_all(reductions); }
TEST_CASE("views") { run_all(views); }
