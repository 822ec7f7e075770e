#include "sharding_cases.h"

#include <redco/nn.h>

#include <doctest/doctest.h>

using redco::testing::Case;
using redco::testing::Input;
using redco::testing::run_all;
using redco::testing::Tensors;

namespace {

struct Heads {
  int64_t batch = 2, query = 4, key_value = 4;
  bool is_causal = false;
};

Case fused(const char* name, Heads h, const char* free, std::vector<Input> mask = {}) {
  std::vector<Input> inputs = {
      {{h.batch, h.query, 3, 4}}, {{h.batch, h.key_value, 5, 4}}, {{h.batch, h.key_value, 5, 4}}};
  inputs.insert(inputs.end(), mask.begin(), mask.end());
  return {name, inputs,
          [h](const Tensors& t) -> Tensors {
            std::optional<at::Tensor> mask;
            if (t.size() > 3) mask = t[3];
            return {at::scaled_dot_product_attention(t[0], t[1], t[2], mask, 0.0, h.is_causal, {},
                                                     h.query != h.key_value)};
          },
          1, free};
}

Input mask_of(std::vector<int64_t> sizes) {
  return {sizes, [sizes] {
            return at::arange(at::IntArrayRef(sizes).empty() ? 1 : c10::multiply_integers(sizes))
                       .reshape(sizes)
                       .remainder(4) > 0;
          }};
}

const std::vector<Case> on_cpu = {
    fused("attention", {}, "01,01,01"),
    fused("attention, causal", {.is_causal = true}, "01,01,01"),
    fused("attention, uneven", {.batch = 3, .query = 3, .key_value = 3}, "01,01,01"),
    fused("attention, few", {.batch = 1, .query = 1, .key_value = 1}, "01,01,01"),
    fused("attention with a mask", {}, "01,01,01,", {mask_of({3, 5})}),
    fused("attention with a mask of all", {}, "01,01,01,01", {mask_of({2, 4, 3, 5})}),
    fused("attention with a mask of examples", {}, "01,01,01,0", {mask_of({2, 1, 3, 5})}),
    fused("attention of shared heads", {.query = 4, .key_value = 2}, "01,0,0"),
    fused("attention of one shared head", {.query = 4, .key_value = 1}, "01,0,0"),
    fused("attention of heads shared across ranks", {.query = 6, .key_value = 3}, "01,0,0"),
    fused("attention of few shared heads", {.batch = 1, .query = 2, .key_value = 1}, "01,0,0"),
};

Case in_segments(const char* name, Heads h, const char* free, std::optional<int64_t> window,
                 std::optional<std::vector<int64_t>> ids = {}) {
  const std::vector<int64_t> kv{h.batch, h.key_value, 5, 4};
  Case c{name,
         {{{h.batch, h.query, 5, 4}}, {kv}, {kv}},
         [=](const Tensors& t) -> Tensors {
           std::optional<at::Tensor> segment_ids;
           if (t.size() > 3) segment_ids = t[3];
           return {redco::segment_attention(t[0], t[1], t[2], segment_ids, window)};
         },
         2,
         free};
  if (ids) c.inputs.push_back(redco::testing::longs(*ids, {h.batch, 5}));
  return c;
}

const std::vector<int64_t> two_rows{1, 1, 1, 2, 2, 3, 4, 4, 4, 0};
const std::vector<Case> segments = {
    in_segments("sequences", {}, "01,01,01,0", {}, two_rows),
    in_segments("sequences and a window", {}, "01,01,01,0", 2, two_rows),
    in_segments("a window", {.batch = 3, .query = 3, .key_value = 3}, "01,01,01", 3),
    in_segments("sequences, shared heads", {.key_value = 2}, "01,0,0,0", {}, two_rows),
    in_segments("a window, one shared head", {.batch = 1, .key_value = 1}, "01,0,0", 2),
};

// Few arguments, for all their placements are combined: the other weights are plain.
Case encoder_layer(const char* name, int64_t n_batch, bool has_mask) {
  return {name,
          {{{n_batch, 3, 4}}, {{12, 4}}, {{8, 4}}},
          [=](const Tensors& t) -> Tensors {
            auto plain = [](at::IntArrayRef sizes) {
              return at::linspace(-1, 1, c10::multiply_integers(sizes), at::kDouble).view(sizes);
            };
            std::optional<at::Tensor> mask;
            if (has_mask) mask = at::eye(3, at::kBool);
            at::Tensor four = plain({4});
            return {at::_transformer_encoder_layer_fwd(
                t[0], 4, 2, t[1], plain({12}), plain({4, 4}), four, true, true, 1e-5, four, four,
                four, four, t[2], plain({8}), plain({4, 8}), four, mask,
                has_mask ? std::optional<int64_t>(0) : std::nullopt)};
          },
          0,
          has_mask ? "" : "0"};
}

const std::vector<Case> layers = {
    encoder_layer("an encoder's layer", 4, false),
    encoder_layer("an encoder's layer, uneven", 3, false),
    encoder_layer("an encoder's layer of one example", 1, false),
    encoder_layer("an encoder's layer with a mask", 4, true),
};

}  // namespace

TEST_CASE("attention on the CPU") { run_all(on_cpu); }
TEST_CASE("attention within segments") { run_all(segments); }
TEST_CASE("layers of attention") { run_all(layers); }
