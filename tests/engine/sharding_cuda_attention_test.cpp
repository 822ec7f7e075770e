// The forms of attention that only CUDA has, on kernels for the CPU that stand in for its own: what
// a rule does around a kernel can be tested without a GPU.

#include "sharding_cases.h"

#include <doctest/doctest.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>

using redco::testing::Case;
using redco::testing::run_all;
using redco::testing::Tensors;

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

OptionalTensor given(const Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

// CUDA's kernels say where their random numbers came from.
Tensor state() { return at::zeros({2}, at::kLong); }

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient(const Tensor& query, const Tensor& key,
                                                     const Tensor& value,
                                                     const OptionalTensor& bias, bool /*logsumexp*/,
                                                     double dropout, bool is_causal,
                                                     std::optional<double> scale) {
  auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      query, key, value, dropout, is_causal, bias, scale);
  return {output, logsumexp, state(), state()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& bias, const Tensor& output, const Tensor& logsumexp, const Tensor& seed,
    const Tensor& offset, double dropout, std::array<bool, 4> /*asked*/, bool is_causal,
    std::optional<double> scale) {
  CHECK(seed.numel() + offset.numel() == 4);
  auto [d_query, d_key, d_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad, query, key, value, output, logsumexp, dropout, is_causal, given(bias), scale);
  return {d_query, d_key, d_value, Tensor()};
}

using FlashResults =
    std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

FlashResults flash(const Tensor& query, const Tensor& key, const Tensor& value, double dropout,
                   bool is_causal, bool /*mask*/, std::optional<double> scale) {
  auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      query, key, value, dropout, is_causal, {}, scale);
  return {output,      logsumexp, Tensor(), Tensor(), query.size(2),
          key.size(2), state(),   state(),  Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& output, const Tensor& logsumexp, const Tensor& /*rows of queries*/,
    const Tensor& /*of keys*/, c10::SymInt n_query, c10::SymInt n_key, double dropout,
    bool is_causal, const Tensor& seed, const Tensor& offset, std::optional<double> scale) {
  CHECK(seed.numel() + offset.numel() == 4);
  CHECK(n_query == query.size(2));
  CHECK(n_key == key.size(2));
  return at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad, query, key, value, output, logsumexp, dropout, is_causal, {}, scale);
}

TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("_scaled_dot_product_efficient_attention", TORCH_FN(efficient));
  m.impl("_scaled_dot_product_efficient_attention_backward", TORCH_FN(efficient_backward));
  m.impl("_scaled_dot_product_flash_attention", TORCH_FN(flash));
  m.impl("_scaled_dot_product_flash_attention_backward", TORCH_FN(flash_backward));
}

Case efficient_case(const char* name, int64_t n_batch, int64_t n_heads, bool has_bias) {
  Case c{name,
         {{{n_batch, n_heads, 3, 4}}, {{n_batch, n_heads, 5, 4}}, {{n_batch, n_heads, 5, 4}}},
         [=](const Tensors& t) -> Tensors {
           OptionalTensor bias;
           if (has_bias) bias = t[3];
           return {std::get<0>(
               at::_scaled_dot_product_efficient_attention(t[0], t[1], t[2], bias, true))};
         },
         1,
         has_bias ? "01,01,01,01" : "01,01,01"};
  if (has_bias)
    c.inputs.push_back({{}, [=] {
                          return at::linspace(-1, 1, n_batch * n_heads * 15, at::kDouble)
                              .view({n_batch, n_heads, 3, 5});
                        }});
  return c;
}

Case flash_case(const char* name, int64_t n_batch, int64_t n_heads, bool is_causal) {
  return {name,
          {{{n_batch, n_heads, 5, 4}}, {{n_batch, n_heads, 5, 4}}, {{n_batch, n_heads, 5, 4}}},
          [=](const Tensors& t) -> Tensors {
            return {std::get<0>(
                at::_scaled_dot_product_flash_attention(t[0], t[1], t[2], 0.0, is_causal))};
          },
          1,
          "01,01,01"};
}

const std::vector<Case> forms = {
    efficient_case("memory-efficient", 2, 4, false),
    efficient_case("memory-efficient, uneven", 3, 3, false),
    efficient_case("memory-efficient, few", 1, 1, false),
    efficient_case("memory-efficient with a bias", 2, 4, true),
    flash_case("flash", 2, 4, false),
    flash_case("flash, causal", 2, 4, true),
    flash_case("flash, uneven", 3, 3, true),
    flash_case("flash, few", 1, 1, false),
};

}  // namespace

TEST_CASE("attention's forms on CUDA") { run_all(forms); }
