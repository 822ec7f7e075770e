// Quantized weights from C++. tests/lua/quant_spec.lua compares numbers with other packages.
#include <redco/quantized.h>

#include "../../engine/kernels/quantized/kernels.h"
#include "files.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

using redco::BlockType;
using redco::Tree;

TEST_CASE("numbers are kept within the steps of their types") {
  at::Tensor x = at::randn({3, 256});
  for (const BlockType& type : redco::block_types()) {
    CAPTURE(std::string(type.name));
    CHECK(redco::find_block_type(type.name) == &type);
    if (type.ggml >= 0) CHECK(redco::find_ggml_block_type(uint32_t(type.ggml)) == &type);
    at::Tensor blocks = redco::quantize(x, type.name);
    CHECK(blocks.sizes().vec() == std::vector<int64_t>{3, 256 / type.size, type.bytes});
    at::Tensor back = redco::dequantize(blocks, type.name);
    // Of numbers up to 4: a step of 4 bits, and the wide steps of fp4; or of 2 and 3 bits.
    CHECK((back - x).abs().max().item<float>() < (type.bits() > 4 ? 0.8 : 2));
    CHECK(at::equal(redco::dequantize(redco::quantize(at::zeros({32 * 8}), type.name), type.name),
                    at::zeros({32 * 8})));
  }
}

TEST_CASE("an importance is a number for each column that is not negative") {
  for (const at::Tensor& importance : {at::zeros({32}), at::zeros({64}) - 1, at::zeros({64}) / 0})
    check_contains(message_of([&] {
                     redco::quantize(at::zeros({2, 64}), "q4_0", importance);
                   }),
                   "importance: expected 64 finite numbers");
}

TEST_CASE("a product is that of the dequantized weight") {
  at::Tensor blocks = redco::quantize(at::randn({5, 64}), "q4_1"), bias = at::randn({5});
  at::Tensor dense = redco::dequantize(blocks, "q4_1");
  for (int64_t rows : {1, 40}) {
    at::Tensor x = at::randn({rows, 64}).set_requires_grad(rows > 1);
    at::Tensor y = redco::quantized_linear(x, blocks, "q4_1", bias);
    CHECK((y - at::linear(x, dense, bias)).abs().max().item<float>() < 1e-4);
    if (rows > 1) {
      y.sum().backward();
      CHECK((x.grad() - dense.sum(0)).abs().max().item<float>() < 1e-4);
    }
  }
  check_contains(message_of([&] {
                   redco::quantized_linear(at::zeros({2, 32}), blocks, "q4_1");
                 }),
                 "expected x [..., 64]");
}

TEST_CASE("each instruction set decodes the same numbers and multiplies with them") {
  constexpr int64_t n_out = 7;
  for (const BlockType& type : redco::block_types()) {
    CAPTURE(std::string(type.name));
    const int64_t n_blocks = 512 / type.size;
    // Any bytes are numbers; some scales are infinite or NaN.
    at::Tensor bytes = at::randint(256, {n_out, n_blocks, type.bytes}, at::kByte);
    at::Tensor x = at::randn({512}), expected;
    const auto* blocks = reinterpret_cast<const std::byte*>(bytes.const_data_ptr());
    for (const auto* kernels : redco::quantized::all_kernels_of(type.name)) {
      at::Tensor numbers = at::zeros({n_out, 512});
      kernels->decode(blocks, numbers.data_ptr<float>(), n_out * n_blocks);
      if (!expected.defined()) expected = numbers;
      CHECK(at::allclose(numbers, expected, 0, 0, /*equal_nan=*/true));
      at::Tensor products = (numbers.to(at::kDouble) * x);
      for (int64_t n : {1, 2, 7}) {
        at::Tensor y = at::zeros({n_out});
        kernels->multiply(blocks, x.data_ptr<float>(), y.data_ptr<float>(), n_blocks, n);
        for (int64_t i = 0; i < n_out; ++i) {
          const double sum = i < n ? products[i].sum().item<double>() : 0;
          const double most = products[i].abs().sum().item<double>();
          CAPTURE(i);
          if (!std::isfinite(sum)) CHECK(!std::isfinite(y[i].item<float>()));
          if (most < 1e30) CHECK(std::abs(y[i].item<double>() - sum) <= 1e-6 * most);
        }
      }
    }
  }
}

TEST_CASE("a row alone has the product that it has among others") {
  for (const BlockType& type : redco::block_types()) {
    CAPTURE(std::string(type.name));
    const int64_t n = 5 * type.size;
    at::Tensor blocks = redco::quantize(at::randn({37, n}), type.name), x = at::randn({3, n});
    CHECK(at::equal(redco::quantized_linear(x, blocks, type.name)[0],
                    redco::quantized_linear(x[0], blocks, type.name)));
  }
}

TEST_CASE("the numbers of a tree count those in blocks, and tied ones once") {
  at::Tensor blocks = redco::quantize(at::zeros({4, 64}), "nf4"), other = at::zeros({3});
  Tree params(Tree::Dict{{"a.weight", blocks},
                         {"a.weight_type", "nf4"},
                         {"a.bias", other},
                         {"b.bias", other},
                         {"c.weight_type", "unknown"}});
  CHECK(redco::quantized_weights(params).size() == 1);
  CHECK(redco::count_numbers(params) == 4 * 64 + 3);
  CHECK(redco::count_numbers(
            params, [](const at::Tensor& tensor) { return tensor.is_floating_point(); }) == 3);
}
