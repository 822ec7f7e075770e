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
     "012,,"},
    {"layer norm of 16-bit numbers",
     {{{3, 2, 4}}, {{4}}},
     [](const Tensors& t) -> Tensors {
       return {at::layer_norm(t[0].to(at::kBFloat16), {4}, t[1].to(at::kBFloat16)).to(t[0])};
     },
     1,
     "012,",
     0.02},
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
     "012,"},
    {"fused rms norm",
     {{{3, 2, 4}}, {{4}}},
     [](const Tensors& t) -> Tensors {
       return {std::get<0>(at::_fused_rms_norm(t[0], {4}, t[1], 1e-6))};
     },
     2,
     "012,"},
    {"layer norm of one row",
     {{{4}}, {{4}}},
     [](const Tensors& t) -> Tensors { return {at::layer_norm(t[0], {4}, t[1], t[1])}; },
     2,
     "0,"},
    {"rms norm of unequal parts",
     {{{2, 5}}},
     [](const Tensors& t) -> Tensors { return {at::rms_norm(t[0], {5})}; },
     2,
     "01"},
    {"rotary positions as complex numbers",
     {{{3, 2, 4}}},
     [](const Tensors& t) -> Tensors {
       const at::Tensor turns =
           at::polar(at::ones({2, 2}, at::kDouble), at::arange(4, at::kDouble).view({2, 2}));
       const at::Tensor pairs = at::view_as_complex(t[0].unflatten(-1, {2, 2}));
       return {at::view_as_real(pairs * turns).flatten(-2), at::real(pairs.conj() * turns)};
     },
     2,
     "012"},
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
    at::Tensor y =
        at::batch_norm(t[0], opt(t, 1), opt(t, 2), mean, variance, is_training, 0.1, 1e-5, false);
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
       at::Tensor y =
           std::get<0>(at::native_batch_norm(t[0], t[1], t[2], mean, variance, true, 0.3, 1e-5));
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
       auto y =
           std::get<0>(at::_batch_norm_with_update(t[0], t[1], t[2], mean, variance, 0.1, 1e-5));
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

Case image(const char* name, std::function<at::Tensor(const at::Tensor&)> f,
           const char* free = "01", int order = 2) {
  return {
      name, {{{3, 4, 4, 6}}}, [f](const Tensors& t) -> Tensors { return {f(t[0])}; }, order, free};
}

const std::vector<Case> images = {
    image("max pool",
          [](const at::Tensor& x) {
            return at::max_pool2d(x, {2, 2});
          }),
    image("max pool 3d",
          [](const at::Tensor& x) {
            return at::max_pool3d(x.unsqueeze(2), {1, 2, 2});
          }),
    image("average pool",
          [](const at::Tensor& x) {
            return at::avg_pool2d(x, {2, 2}, {1, 1});
          }),
    image("adaptive average pool",
          [](const at::Tensor& x) {
            return at::adaptive_avg_pool2d(x, {2, 3});
          }),
    image("adaptive average pool to one",
          [](const at::Tensor& x) {
            return at::adaptive_avg_pool2d(x, {1, 1});
          }),
    image("adaptive max pool",
          [](const at::Tensor& x) {
            return std::get<0>(at::adaptive_max_pool2d(x, {2, 3}));
          }),
    image("nearest",
          [](const at::Tensor& x) {
            return at::upsample_nearest2d(x, {8, 12});
          }),
    image("bilinear",
          [](const at::Tensor& x) {
            return at::upsample_bilinear2d(x, {7, 5}, false);
          }),
    image("bicubic",
          [](const at::Tensor& x) {
            return at::upsample_bicubic2d(x, {8, 9}, true);
          }),
    image("nearest 1d",
          [](const at::Tensor& x) { return at::upsample_nearest1d(x.flatten(2), {48}); }),
    image("reflection",
          [](const at::Tensor& x) {
            return at::reflection_pad2d(x, {1, 2, 1, 0});
          }),
    image("replication",
          [](const at::Tensor& x) {
            return at::replication_pad2d(x, {1, 2, 1, 0});
          }),
    image(
        "pixel shuffle", [](const at::Tensor& x) { return at::pixel_shuffle(x, 2); }, "0"),
    image(
        "pixel unshuffle", [](const at::Tensor& x) { return at::pixel_unshuffle(x, 2); }, "0"),
    {"grid sampler",
     {{{3, 2, 4, 4}}, {{3, 2, 3, 2}}},
     [](const Tensors& t) -> Tensors { return {at::grid_sampler(t[0], t[1], 0, 0, false)}; },
     1,
     "01,0"},
};

#define UNARY(f, ...)                                                                      \
  {                                                                                        \
#f, {{{3, 4 } } },                                                                     \
         [](const Tensors& t) -> Tensors { return {at::f(t[0], ##__VA_ARGS__)}; }, 2, "01" \
  }

const std::vector<Case> activations = {
    UNARY(hardtanh),
    UNARY(hardswish),
    {"hardsigmoid",
     {{{3, 4}}},
     [](const Tensors& t) -> Tensors { return {at::hardsigmoid(t[0])}; },
     1,
     "01"},
    UNARY(softplus),
    UNARY(elu),
    UNARY(leaky_relu),
    UNARY(mish),
    UNARY(log_sigmoid),
    UNARY(hardshrink),
    UNARY(softshrink),
    UNARY(relu6),
    UNARY(selu),
    {"prelu",
     {{{3, 4}}, {{4}}},
     [](const Tensors& t) -> Tensors { return {at::prelu(t[0], t[1])}; },
     2,
     "01,0"},
    {"glu",
     {{{3, 4}}},
     [](const Tensors& t) -> Tensors {
       return {at::glu(t[0], 1), at::glu(t[0].t(), 0)};
     },
     1,
     "0"},
    {"weight norm",
     {{{3, 4}}, {{3, 1}}},
     [](const Tensors& t) -> Tensors { return {at::_weight_norm(t[0], t[1], 0)}; },
     1,
     "0,0"},
};

at::Tensor single(std::vector<int64_t> sizes) {
  return at::randn(sizes, at::detail::createCPUGenerator(7), at::kFloat) * 0.5;
}

// oneDNN's layer is for single precision alone. Few inputs: all their placements are combined.
Case lstm(const char* name, int64_t n_batch, bool is_bidirectional) {
  Case c{name, {}, nullptr, 1, "", 1e-4};
  for (std::vector<int64_t> sizes : {std::vector<int64_t>{3, n_batch, 4}, {8, 4}, {8, 2}})
    c.inputs.push_back({sizes, [sizes] { return single(sizes); }});
  c.call = [=](const Tensors& t) -> Tensors {
    Tensors weights = {t[1], t[2]};
    if (is_bidirectional) weights.insert(weights.end(), {t[1] * 2, t[2]});
    at::Tensor state = at::ones({is_bidirectional ? 2 : 1, n_batch, 2}, at::kFloat);
    auto [y, h, cell] =
        at::lstm(t[0], {state, state * 2}, weights, false, 1, 0.0, true, is_bidirectional, false);
    return {y, h, cell};
  };
  return c;
}

// Its one call, without what picks and joins the states around it.
Case lstm_layer() {
  Case c{"a layer of oneDNN's", {}, nullptr, 1, "1,0,,", 1e-4};
  for (std::vector<int64_t> sizes : {std::vector<int64_t>{3, 5, 4}, {5, 2}, {8, 4}, {8, 2}})
    c.inputs.push_back({sizes, [sizes] { return single(sizes); }});
  c.call = [](const Tensors& t) -> Tensors {
    at::Tensor bias = at::ones({8}, at::kFloat);
    auto [y, h, cell, kept] = at::mkldnn_rnn_layer(t[0], t[2], t[3], bias, bias, t[1], t[1] * 2,
                                                   false, {}, 2, 2, 1, true, false, false, true);
    return {y, h, cell};
  };
  return c;
}

const std::vector<Case> recurrences = {
    lstm_layer(),
    lstm("lstm in single precision", 5, false),
    lstm("lstm of two directions", 4, true),
    lstm("lstm of one example", 1, false),
};

}  // namespace

TEST_CASE("normalization") { run_all(normalization); }
TEST_CASE("batch normalization") { run_all(batch_norms); }
TEST_CASE("convolution") { run_all(convolutions); }
TEST_CASE("images") { run_all(images); }
TEST_CASE("activations") { run_all(activations); }
TEST_CASE("recurrence") { run_all(recurrences); }
