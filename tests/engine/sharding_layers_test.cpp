// The layers of networks: normalization, convolutions, images, attention, recurrence.

#include "sharding_cases.h"

#include <doctest/doctest.h>

using redco::testing::Case;
using redco::testing::run_all;
using redco::testing::Tensors;

namespace {

at::Tensor opt(const Tensors& t, size_t i) { return i < t.size() ? t[i] : at::Tensor(); }

const std::vector<Case> normalization = {
    {"layer norm",
     {{{3, 2, 4}}, {{4}}, {{4}}},
     [](const Tensors& t) -> Tensors { return {at::layer_norm(t[0], {4}, t[1], t[2])}; },
     2,
     "01,,"},
    {"layer norm without weights",
     {{{3, 2, 4}}},
     [](const Tensors& t) -> Tensors {
       return {at::layer_norm(t[0], {2, 4})};
     },
     2,
     "0"},
    {"rms norm",
     {{{3, 2, 4}}, {{4}}},
     [](const Tensors& t) -> Tensors { return {at::rms_norm(t[0], {4}, t[1], 1e-6)}; },
     2,
     "01,"},
    {"fused rms norm",
     {{{3, 2, 4}}, {{4}}},
     [](const Tensors& t) -> Tensors {
       return {std::get<0>(at::_fused_rms_norm(t[0], {4}, t[1], 1e-6))};
     },
     1,
     "01,"},
    {"group norm",
     {{{3, 4, 3}}, {{4}}, {{4}}},
     [](const Tensors& t) -> Tensors { return {at::group_norm(t[0], 2, t[1], t[2])}; },
     2,
     "01,0,0"},
    {"group norm without weights",
     {{{3, 6, 2, 2}}},
     [](const Tensors& t) -> Tensors { return {at::group_norm(t[0], 3)}; },
     2,
     "01"},
};

Case batch_norm(const char* name, bool is_training, bool has_weights) {
  Case c{name, {{{5, 3, 2}}}, nullptr, 2, "012,0,0"};
  if (has_weights) c.inputs.insert(c.inputs.end(), {{{3}}, {{3}}});
  c.call = [=](const Tensors& t) -> Tensors {
    at::Tensor mean = at::full_like(t[0].select(0, 0).select(1, 0).detach(), 0.5);
    at::Tensor variance = at::full_like(mean, 2);
    at::Tensor y = at::batch_norm(t[0], opt(t, 1), opt(t, 2), mean, variance, is_training, 0.1,
                                  1e-5, false);
    return {y, mean, variance};
  };
  return c;
}

const std::vector<Case> batch_norms = {
    batch_norm("batch norm", true, true),
    batch_norm("batch norm without weights", true, false),
    batch_norm("batch norm with fixed statistics", false, true),
    {"batch norm with statistics of its own",
     {{{5, 3}}, {{3}}, {{3}}, {{3}}, {{3}}},
     [](const Tensors& t) -> Tensors {
       at::Tensor mean = t[3].detach() * 1, variance = t[4].detach().square() + 1;
       at::Tensor y = std::get<0>(at::native_batch_norm(t[0], t[1], t[2], mean, variance, true,
                                                        0.3, 1e-5));
       return {y, mean, variance};
     },
     2,
     "01,0,0,0,0"},
    {"batch norm without running statistics",
     {{{5, 3, 2}}, {{3}}, {{3}}},
     [](const Tensors& t) -> Tensors {
       return {std::get<0>(at::_native_batch_norm_legit(t[0], t[1], t[2], true, 0.1, 1e-5))};
     },
     2,
     "012,0,0"},
    {"batch norm with update",
     {{{5, 3, 2}}, {{3}}, {{3}}, {{3}}},
     [](const Tensors& t) -> Tensors {
       at::Tensor mean = t[3].detach() * 1, variance = t[3].detach().square() + 1;
       auto y = std::get<0>(
           at::_batch_norm_with_update(t[0], t[1], t[2], mean, variance, 0.1, 1e-5));
       return {y, mean, variance};
     },
     2,
     "012,0,0,0"},
};

using Ints = std::vector<int64_t>;

Case convolution(const char* name, Ints input, Ints weight, bool is_transposed, int64_t groups,
                 const char* free) {
  int64_t n_out = is_transposed ? weight[1] * groups : weight[0];
  size_t n = input.size() - 2;
  return {name,
          {{input}, {weight}, {{n_out}}},
          [=](const Tensors& t) -> Tensors {
            return {at::convolution(t[0], t[1], t[2], Ints(n, 2), Ints(n, 1), Ints(n, 1),
                                    is_transposed, Ints(n, 0), groups)};
          },
          2,
          free};
}

const std::vector<Case> convolutions = {
    convolution("conv1d", {3, 4, 5}, {6, 4, 3}, false, 1, "01,01,0"),
    convolution("conv2d", {3, 2, 5, 4}, {3, 2, 3, 2}, false, 1, "01,01,0"),
    convolution("conv3d", {2, 2, 3, 3, 3}, {2, 2, 2, 2, 2}, false, 1, "01,01,0"),
    convolution("conv1d, transposed", {3, 4, 3}, {4, 3, 3}, true, 1, "01,01,0"),
    convolution("conv1d by groups", {3, 4, 5}, {8, 1, 3}, false, 4, "0,,0"),
    convolution("conv1d by groups, transposed", {3, 4, 3}, {4, 2, 3}, true, 2, "0,,0"),
    convolution("conv1d of one channel", {1, 1, 5}, {1, 1, 3}, false, 1, ",,"),
    {"conv2d without bias",
     {{{3, 2, 3, 3}}, {{4, 2, 2, 2}}},
     [](const Tensors& t) -> Tensors { return {at::conv2d(t[0], t[1])}; },
     2,
     "01,01"},
};

}  // namespace

TEST_CASE("normalization") { run_all(normalization); }
TEST_CASE("batch normalization") { run_all(batch_norms); }
TEST_CASE("convolution") { run_all(convolutions); }
