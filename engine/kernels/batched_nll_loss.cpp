// The negative log-likelihood under vmap: LibTorch has no batching rule for it, and would call the
// operator once for each example. These kernels use operators that have one.

#include <ATen/core/Reduction.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scatter.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/SymInt.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

namespace redco {

namespace {

using Weight = std::optional<at::Tensor>;

// The labels as an index into the dimension of the classes, and their weights. An ignored label has
// index 0 and weight 0.
struct Labels {
  Labels(const at::Tensor& scores, const at::Tensor& target, const Weight& weight,
         const c10::SymInt& ignore_index)
      : dim(scores.dim() > 1 ? 1 : 0) {
    at::Tensor ignored = target.eq(ignore_index);
    at::Tensor labels = target.masked_fill(ignored, 0);
    weights = at::ones_like(labels, scores.options());
    if (weight && weight->defined())
      weights = weight->index_select(0, labels.flatten()).view_as(labels);
    weights = weights.masked_fill(ignored, 0);
    index = labels.unsqueeze(dim);
  }

  int64_t dim;
  at::Tensor index, weights;
};

std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& self, const at::Tensor& target,
                                           const Weight& weight, int64_t reduction,
                                           c10::SymInt ignore_index) {
  Labels labels(self, target, weight, ignore_index);
  at::Tensor scores = self.gather(labels.dim, labels.index).squeeze(labels.dim);
  // The score of an ignored label may be infinite.
  at::Tensor losses = at::where(labels.weights.eq(0), 0, -scores * labels.weights);
  at::Tensor total = labels.weights.sum();
  if (reduction == at::Reduction::None) return {losses, at::zeros_like(total)};
  at::Tensor sum = losses.sum();
  return {reduction == at::Reduction::Mean ? sum / total : sum, total};
}

at::Tensor backward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                    const Weight& weight, int64_t reduction, c10::SymInt ignore_index,
                    const at::Tensor& total_weight) {
  Labels labels(self, target, weight, ignore_index);
  at::Tensor each = -labels.weights * grad;
  if (reduction == at::Reduction::Mean) each = each / total_weight;
  // The gradient of an ignored label is 0, even if the division gave 0 / 0.
  each = at::where(labels.weights.eq(0), 0, each);
  return at::zeros_like(self).scatter(labels.dim, labels.index, each.unsqueeze(labels.dim));
}

TORCH_LIBRARY_IMPL(aten, FuncTorchBatched, m) {
  m.impl("nll_loss_forward", forward);
  m.impl("nll_loss_backward", backward);
  m.impl("nll_loss2d_forward", forward);
  m.impl("nll_loss2d_backward", backward);
}

}  // namespace

}  // namespace redco
