#include "sharding_cases.h"

#include <redco/nn.h>

#include <doctest/doctest.h>

using namespace redco;
using redco::testing::Case;
using redco::testing::Input;
using redco::testing::longs;
using redco::testing::run_all;
using redco::testing::Tensors;

namespace {

const Input labels = longs({3, 0, -100, 6, 2}, {5});

at::Tensor cross_entropy(const Tensors& t, int64_t reduction, double smoothing = 0) {
  return at::cross_entropy_loss(t[0], t[1], t.size() > 2 ? t[2] : at::Tensor(), reduction, -100,
                                smoothing);
}

const std::vector<Case> softmaxes = {
    {"softmax",
     {{{3, 5}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].softmax(0), t[0].softmax(-1)};
     },
     2,
     "01"},
    {"log_softmax",
     {{{3, 5}}},
     [](const Tensors& t) -> Tensors {
       return {t[0].log_softmax(0), t[0].log_softmax(-1)};
     },
     2,
     "01"},
    {"softmax of rows where nothing is allowed",
     {{{3, 5}}},
     [](const Tensors& t) -> Tensors {
       at::Tensor row = at::tensor({0, 1, 0}).eq(1).unsqueeze(1);
       return {at::_safe_softmax(t[0].masked_fill(row, -INFINITY), 1)};
     },
     1,
     "01"},
    {"softmax of large numbers, few of them",
     {{{1, 3}}},
     [](const Tensors& t) -> Tensors {
       return {(t[0] * 1000).softmax(1), (t[0] * 1000).log_softmax(1), t[0].softmax(0)};
     },
     1,
     "01"},
};

const std::vector<Case> losses = {
    {"cross-entropy, mean",
     {{{5, 7}}, labels},
     [](const Tensors& t) -> Tensors { return {cross_entropy(t, at::Reduction::Mean)}; },
     2,
     "01,0"},
    {"cross-entropy, sum, with weights",
     {{{5, 7}}, labels, {{7}}},
     [](const Tensors& t) -> Tensors {
       return {cross_entropy({t[0], t[1], t[2].detach()}, at::Reduction::Sum),
               cross_entropy({t[0], t[1], t[2].detach()}, at::Reduction::Mean), (t[2] * 0).sum()};
     },
     2,
     "01,0,0"},
    {"cross-entropy of each",
     {{{5, 7}}, labels},
     [](const Tensors& t) -> Tensors { return {cross_entropy(t, at::Reduction::None)}; },
     2,
     "01,0"},
    {"cross-entropy, smoothed",
     {{{5, 7}}, labels},
     [](const Tensors& t) -> Tensors { return {cross_entropy(t, at::Reduction::Mean, 0.1)}; },
     2,
     "01,0"},
    {"cross-entropy with fewer classes than ranks",
     {{{3, 3}}, longs({0, 2, 1}, {3})},
     [](const Tensors& t) -> Tensors { return {cross_entropy(t, at::Reduction::Mean)}; },
     2,
     "01,0"},
    {"cross-entropy of one example",
     {{{5}}, longs({3}, {})},
     [](const Tensors& t) -> Tensors { return {cross_entropy(t, at::Reduction::Mean)}; },
     2,
     "0,"},
    {"cross-entropy of probabilities",
     {{{5, 7}}, {{5, 7}}},
     [](const Tensors& t) -> Tensors { return {cross_entropy(t, at::Reduction::Mean, 0.1)}; },
     2,
     "01,01"},
    {"cross-entropy of images",
     {{{2, 3, 2, 2}}, longs({0, 1, 2, -100, 1, 1, 0, 2}, {2, 2, 2})},
     [](const Tensors& t) -> Tensors {
       return {cross_entropy(t, at::Reduction::Mean), cross_entropy(t, at::Reduction::None)};
     },
     1,
     "0123,012"},
};

at::Tensor fused(const Tensors& t, double smoothing = 0) {
  return linear_cross_entropy(t[0], t[1], t[2], -100, smoothing);
}

const std::vector<Case> fused_losses = {
    {"linear_cross_entropy",
     {{{5, 3}}, {{7, 3}}, labels},
     [](const Tensors& t) -> Tensors { return {fused(t)}; },
     2,
     "0,0,0"},
    {"linear_cross_entropy of sequences, smoothed",
     {{{3, 2, 3}}, {{7, 3}}, longs({3, 0, -100, 6, 2, 1}, {3, 2})},
     [](const Tensors& t) -> Tensors { return {fused(t, 0.1) / 5}; },
     2,
     "0,0,0"},
    {"linear_cross_entropy, once",
     {{{3, 2, 3}}, {{7, 3}}, longs({3, 0, -100, 6, 2, 1}, {3, 2})},
     [](const Tensors& t) -> Tensors { return {fused(t, 0.1) / 5}; },
     1,
     "0,0,0"},
    {"linear_cross_entropy with a bias",
     {{{5, 3}}, {{7, 3}}, {{7}}, labels},
     [](const Tensors& t) -> Tensors {
       return {linear_cross_entropy(t[0], t[1], t[3], -100, 0.1, t[2])};
     },
     2,
     "0,0,0,0"},
    {"linear_logprobs",
     {{{3, 2, 3}}, {{7, 3}}, longs({3, 0, -100, 6, 2, 1}, {3, 2})},
     [](const Tensors& t) -> Tensors {
       at::Tensor each = linear_logprobs(t[0], t[1], t[2]);
       return {each, each.sum(1).exp()};
     },
     2,
     "0,0,0"},
    {"linear_logprobs, once",
     {{{5, 3}}, {{7, 3}}, {{7}}, labels},
     [](const Tensors& t) -> Tensors {
       at::Tensor each = linear_logprobs(t[0], t[1], t[3], -100, t[2]);
       return {each, each.square()};
     },
     1,
     "0,0,0,0"},
    {"linear_logprobs with fewer classes than ranks",
     {{{3, 3}}, {{3, 3}}, longs({0, 2, 1}, {3})},
     [](const Tensors& t) -> Tensors { return {linear_logprobs(t[0], t[1], t[2])}; },
     1,
     "0,0,0"},
    {"linear_cross_entropy with fewer classes than ranks",
     {{{3, 3}}, {{3, 3}}, longs({0, 2, 1}, {3})},
     [](const Tensors& t) -> Tensors { return {fused(t)}; },
     1,
     "0,0,0"},
};

const std::vector<Case> elementwise_losses = {
    {"mean squared error",
     {{{3, 5}}, {{3, 5}}},
     [](const Tensors& t) -> Tensors {
       return {at::mse_loss(t[0], t[1]), at::mse_loss(t[0], t[1], at::Reduction::Sum),
               at::mse_loss(t[0], t[1], at::Reduction::None)};
     },
     2,
     "01,01"},
    {"huber and smooth",
     {{{3, 5}}, {{3, 5}}},
     [](const Tensors& t) -> Tensors {
       return {at::huber_loss(t[0], t[1]), at::smooth_l1_loss(t[0], t[1])};
     },
     2,
     "01,01"},
    {"binary cross-entropy",
     {{{3, 5}}, {{3, 5}}},
     [](const Tensors& t) -> Tensors {
       at::Tensor target = t[1].detach().sigmoid();
       return {at::binary_cross_entropy(t[0].sigmoid(), target),
               at::binary_cross_entropy_with_logits(t[0], target), (t[1] * 0).sum()};
     },
     2,
     "01,01"},
};

const std::vector<Case> embeddings = {
    {"embedding",
     {{{7, 4}}, longs({3, 0, 6, 3, 5, 1}, {2, 3})},
     [](const Tensors& t) -> Tensors { return {at::embedding(t[0], t[1])}; },
     2,
     "01,01"},
    {"embedding with padding",
     {{{7, 4}}, longs({3, 0, 6, 3, 5, 1}, {2, 3})},
     [](const Tensors& t) -> Tensors { return {at::embedding(t[0], t[1], 3)}; },
     2,
     "01,01"},
    {"embedding, scaled by frequency",
     {{{7, 4}}, longs({3, 0, 6, 3, 5, 1}, {6})},
     [](const Tensors& t) -> Tensors { return {at::embedding(t[0], t[1], -1, true)}; },
     1,
     "01,"},
    {"embedding with fewer rows than ranks",
     {{{3, 2}}, longs({2, 0, 2}, {3})},
     [](const Tensors& t) -> Tensors { return {at::embedding(t[0], t[1])}; },
     2,
     "01,0"},
};

}  // namespace

TEST_CASE("softmax") { run_all(softmaxes); }
TEST_CASE("losses") { run_all(losses); }
TEST_CASE("elementwise losses") { run_all(elementwise_losses); }
TEST_CASE("fused losses") { run_all(fused_losses); }
TEST_CASE("embedding") { run_all(embeddings); }

TEST_CASE("over a split vocabulary only a few numbers a row move") {
  constexpr int64_t n_rows = 64, n_classes = 1000, n_in = 8;
  redco::testing::on_threads(1, 2, [&](const std::shared_ptr<const Mesh>& mesh) {
    Placement whole, split = Placement::shard(0);
    at::Tensor table =
        shard(at::ones({n_classes, n_in}, at::kDouble), mesh, {whole, {}, {}, {}, split});
    at::Tensor ids = at::arange(n_rows, at::kLong);
    table.requires_grad_();
    at::Tensor x = at::embedding(table, ids);
    auto traffic = [&] {
      Traffic all;
      for (const Traffic& kind : mesh->group(Mesh::mp).counters()) {
        all.count += kind.count;
        all.bytes += kind.bytes;
      }
      return all;
    };
    // One sum of the rows, as x is used.
    linear_cross_entropy(x, table, ids).backward();
    Traffic fused = traffic();
    // The rows and their gradient; then one number a row and the loss, alone on a rank.
    int64_t rows = n_rows * n_in * 8, row = n_rows * 8;
    int64_t expected = 2 * rows + row + 8;
    if (fused.count != 4 || fused.bytes != expected)
      throw std::runtime_error("moved " + std::to_string(fused.bytes) + " bytes in " +
                               std::to_string(fused.count) + " collectives, expected " +
                               std::to_string(expected));
    at::Tensor logits = x.detach().mm(table.detach().t()).requires_grad_();
    Traffic before = traffic();
    at::cross_entropy_loss(logits, ids).backward();
    Traffic after = traffic();
    // A number a row forward and backward, and one sum of loss and weight.
    expected = 2 * row + 16;
    if (after.count - before.count != 3 || after.bytes - before.bytes != expected)
      throw std::runtime_error("moved " + std::to_string(after.bytes - before.bytes) +
                               " bytes in " + std::to_string(after.count - before.count) +
                               " collectives, expected " + std::to_string(expected));
  });
}
