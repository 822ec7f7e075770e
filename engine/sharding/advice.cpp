// Advice for operators whose arguments were gathered. Code in backquotes must run as written, given
// the reader's tensors and names.

#include <redco/moves.h>

#include <string_view>
#include <vector>

namespace redco {

namespace {

struct Family {
  std::vector<std::string_view> names;  // of operators; a name that ends in * is a prefix
  const char* advice;
};

const std::vector<Family>& families() {
  static const std::vector<Family> table = {
      {{"aten::linalg_*", "aten::_linalg_*", "aten::cholesky*", "aten::inverse", "aten::lu_*",
        "aten::geqrf", "aten::ormqr", "aten::orgqr", "aten::triangular_solve"},
       "It needs the whole matrix: keep the parameter whole that goes into it, by its name in "
       "`params_sharding_rules = { { \"*.weight\", \"replicate\" } }`."},
      {{"aten::_fft_*"},
       "A transform needs all of its dimension: keep the parameter whole that goes into it, by its "
       "name in `params_sharding_rules = { { \"*.weight\", \"replicate\" } }`."},
      {{"aten::nonzero*", "aten::masked_select", "aten::masked_scatter", "aten::_unique*",
        "aten::unique_*", "aten::argwhere"},
       "How much it returns depends on values. Keep the shape instead of taking elements out: "
       "`x:masked_fill(mask:logical_not(), 0)`, or `torch.where(mask, x, torch.zeros_like(x))`."},
      {{"aten::histc", "aten::bincount", "aten::_histogramdd*", "aten::histogram*"},
       "Count by comparing with the classes instead: `ids:unsqueeze(-1):eq(classes):sum(0)`."},
      {{"aten::_cdist*", "aten::_pdist*", "aten::_euclidean_dist"},
       "Write distances as a product: "
       "`(x:pow(2):sum(-1, true) + y:pow(2):sum(-1) - x:matmul(y:t()) * 2):clamp_min(0):sqrt()`."},
      {{"aten::_embedding_bag*"},
       "Sum the rows of an embedding instead: `torch.embedding(weight, bags):sum(1)`."},
      {{"aten::multinomial"},
       "Draw with the maximum of logits plus Gumbel noise: "
       "`(logits - torch.empty_like(logits):uniform_():log():neg():log()):argmax(-1)`."},
      {{"aten::view", "aten::_unsafe_view", "aten::_reshape_alias", "aten::as_strided*",
        "aten::unfold*"},
       "The new shape cuts through the parts: let the split dimension come first among those that "
       "are merged, or split another dimension of the parameter: "
       "`params_sharding_rules = { { \"*.weight\", 1 } }`."},
      {{"aten::index*", "aten::_index_put*", "aten::_unsafe_index*", "aten::take*", "aten::put*",
        "aten::scatter*", "aten::gather*"},
       "Its indices reach over the dimension that is split: split another one of the parameter, "
       "`params_sharding_rules = { { \"*.weight\", 1 } }`, or compare with the indices instead of "
       "looking them up: `x:mul(classes:eq(ids:unsqueeze(-1))):sum(-1)`."},
      {{"aten::_ctc_loss*", "aten::_cudnn_ctc_loss*"},
       "It goes through its sequence step by step: give it logits whose class and time dimensions "
       "are whole, by the name of the layer before it in "
       "`params_sharding_rules = { { \"*.weight\", \"replicate\" } }`."},
      {{"aten::slice*", "aten::select*", "aten::narrow*", "aten::split*", "aten::unsafe_split*",
        "aten::unbind", "aten::diagonal*", "aten::glu*"},
       "It cuts the dimension that is split. Where it takes a fused projection apart, let each of "
       "the parts be split, `params_sharding_rules = { { \"*.weight\", { dim = 0, block = 768 } } "
       "}` with their length as the block; unequal parts need parameters of their own. Else split "
       "another dimension, or none: `params_sharding_rules = { { \"*.weight\", \"replicate\" } "
       "}`."},
      {{"aten::cat", "aten::stack", "aten::constant_pad_nd", "aten::*_pad*"},
       "It makes the dimension longer that is split: join or pad along another one, or split "
       "another dimension of the parameter, `params_sharding_rules = { { \"*.weight\", 1 } }`."},
      {{"aten::max", "aten::min", "aten::argmax", "aten::argmin"},
       "It looks for a place along the dimension that is split. Where the value will do, "
       "`x:amax(1)` and `x:amin(1)` work on parts; else search along another dimension."},
      {{"aten::sort", "aten::argsort", "aten::topk", "aten::kthvalue", "aten::median",
        "aten::nanmedian", "aten::mode", "aten::cumsum*", "aten::cumprod*", "aten::_cummax*",
        "aten::_cummin*", "aten::logcumsumexp*", "aten::_logcumsumexp*", "aten::flip", "aten::roll",
        "aten::rot90", "aten::searchsorted", "aten::bucketize", "aten::renorm"},
       "It goes along the dimension that is split: let it go along another one, or keep the "
       "parameter whole that it reads, by its name in "
       "`params_sharding_rules = { { \"*.weight\", \"replicate\" } }`."},
      {{"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mv", "aten::addmv",
        "aten::dot", "aten::linear", "aten::convolution*", "redco::linear_cross_entropy"},
       "The two sides of a product are split along dimensions that do not fit. After a layer that "
       "is split along its outputs let one follow that is split along its inputs: "
       "`params_sharding_rules = { { \"*.up.weight\", 0 }, { \"*.down.weight\", 1 } }`. With "
       "sequence_parallel each product gathers what its norm made, which is meant so."},
  };
  return table;
}

bool matches(std::string_view pattern, std::string_view name) {
  size_t star = pattern.find('*');
  if (star == pattern.npos) return pattern == name;
  std::string_view before = pattern.substr(0, star), after = pattern.substr(star + 1);
  if (!name.starts_with(before)) return false;
  if (after.empty()) return true;
  if (after.ends_with('*'))
    return name.find(after.substr(0, after.size() - 1), before.size()) != name.npos;
  return name.ends_with(after);
}

}  // namespace

std::string advice(const std::string& op) {
  for (const Family& family : families())
    for (std::string_view pattern : family.names)
      if (matches(pattern, op)) return family.advice;
  return "It has no way to work on parts of its arguments as they are split here: write it with "
         "other operators, or keep what goes into it whole: a parameter by its name in "
         "`params_sharding_rules = { { \"*.weight\", \"replicate\" } }`, another tensor by "
         "`x:full()`.";
}

}  // namespace redco
