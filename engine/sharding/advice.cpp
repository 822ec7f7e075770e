#include "advice.h"

#include <string_view>
#include <vector>

namespace redco {

namespace {

struct Family {
  std::vector<std::string_view> prefixes;  // of the operators' names
  const char* advice;
};

const std::vector<Family>& families() {
  static const std::vector<Family> table = {
      {{"aten::linalg_", "aten::_linalg_", "aten::cholesky", "aten::inverse", "aten::lu_",
        "aten::geqrf", "aten::ormqr", "aten::orgqr", "aten::triangular_solve"},
       "It needs the whole matrix: keep the parameter whole that goes into it, by {name, "
       "\"replicate\"} in params_sharding_rules."},
      {{"aten::_fft_"},
       "A transform needs all of its dimension: keep what goes into it whole, by {name, "
       "\"replicate\"} in params_sharding_rules."},
      {{"aten::nonzero", "aten::masked_select", "aten::masked_scatter", "aten::_unique",
        "aten::unique_", "aten::argwhere"},
       "How much it returns depends on values: write x:masked_fill(mask, 0) or torch.where, which "
       "keep the shape, instead of taking elements out."},
      {{"aten::histc", "aten::bincount", "aten::_histogramdd", "aten::histogram"},
       "Count by comparing instead: (x:unsqueeze(-1) == classes):sum(0)."},
      {{"aten::_cdist", "aten::_pdist", "aten::_euclidean_dist"},
       "Write distances as a product: (x^2):sum(-1) + (y^2):sum(-1) - 2 * x:matmul(y:t())."},
      {{"aten::_embedding_bag"}, "Write torch.embedding(...) and a sum over its rows."},
      {{"aten::multinomial"},
       "Draw with the maximum of logits plus Gumbel noise: "
       "(logits - torch.rand_like(logits):log():neg():log()):argmax(-1)."},
      {{"aten::view", "aten::_unsafe_view", "aten::_reshape_alias", "aten::as_strided",
        "aten::unfold"},
       "The new shape cuts through the parts: let the split dimension come first among those that "
       "are merged, or split another one by params_sharding_rules."},
      {{"aten::index", "aten::_index_put", "aten::_unsafe_index", "aten::take", "aten::put",
        "aten::scatter", "aten::gather"},
       "Its indices reach over the dimension that is split: split another one by "
       "params_sharding_rules, or compare with the indices (torch.where)."},
      {{"aten::_ctc_loss", "aten::_cudnn_ctc_loss"},
       "It goes through its sequence step by step: give it logits whose class and time dimensions "
       "are whole, by {name, \"replicate\"} for the layer before it."},
  };
  return table;
}

}  // namespace

std::string advice(const std::string& op) {
  for (const Family& family : families())
    for (std::string_view prefix : family.prefixes)
      if (op.starts_with(prefix)) return family.advice;
  return "There is no rule for it: write it with other operators where that line calls it, or keep "
         "what goes into it whole, by {name, \"replicate\"} in params_sharding_rules for a "
         "parameter and by x:full() for the rest.";
}

}  // namespace redco
