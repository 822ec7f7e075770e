// Advice for operators whose arguments were gathered. Code in backquotes must run as written, with
// the tensors and names of the reader's script.

#include "advice.h"

#include "in_bytes.h"

#include <redco/sharding_report.h>

#include <c10/util/Exception.h>

#include <set>
#include <string>
#include <string_view>
#include <utility>
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
       "It needs the whole matrix: replicate the parameter that it reads, by its name in "
       "`params_sharding_rules = { { \"*.weight\", \"replicate\" } }`."},
      {{"aten::_fft_*"},
       "A transform needs its whole dimension: replicate the parameter that it reads, by its name "
       "in `params_sharding_rules = { { \"*.weight\", \"replicate\" } }`."},
      {{"aten::nonzero*", "aten::masked_select", "aten::masked_scatter", "aten::_unique*",
        "aten::unique_*", "aten::argwhere"},
       "The shape of its result depends on values. Keep the shape instead of selecting elements: "
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
       "The new shape cuts through the parts: put the split dimension first among those that are "
       "merged, or split another dimension of the parameter: "
       "`params_sharding_rules = { { \"*.weight\", 1 } }`."},
      {{"aten::index*", "aten::_index_put*", "aten::_unsafe_index*", "aten::take*", "aten::put*",
        "aten::scatter*", "aten::gather*"},
       "Its indices refer to the split dimension: split another dimension of the parameter, "
       "`params_sharding_rules = { { \"*.weight\", 1 } }`, or compare with the indices instead of "
       "looking them up: `x:mul(classes:eq(ids:unsqueeze(-1))):sum(-1)`."},
      {{"aten::slice*", "aten::select*", "aten::narrow*", "aten::split*", "aten::unsafe_split*",
        "aten::unbind", "aten::diagonal*", "aten::glu*"},
       "It cuts the split dimension. If it separates a fused projection, split each of the fused "
       "matrices, `params_sharding_rules = { { \"*.weight\", { dim = 0, block = 768 } } "
       "}` with their length as the block, or a list of their lengths, "
       "`params_sharding_rules = { { \"*.weight\", { dim = 0, block = { 768, 384, 384 } } } }`. "
       "Otherwise split another dimension, or none: `params_sharding_rules = { { \"*.weight\", "
       "\"replicate\" } "
       "}`."},
      {{"aten::cat", "aten::stack", "aten::constant_pad_nd", "aten::*_pad*"},
       "It extends the split dimension: join or pad along another one, or split "
       "another dimension of the parameter, `params_sharding_rules = { { \"*.weight\", 1 } }`."},
      {{"aten::sort", "aten::arg*", "aten::topk", "aten::kthvalue", "aten::median",
        "aten::nanmedian", "aten::mode", "aten::cumsum*", "aten::cumprod*", "aten::_cummax*",
        "aten::_cummin*", "aten::logcumsumexp*", "aten::_logcumsumexp*", "aten::flip", "aten::roll",
        "aten::rot90", "aten::searchsorted", "aten::bucketize", "aten::renorm"},
       "It works along the split dimension: let it work along another one, or replicate the "
       "parameter that it reads, by its name in "
       "`params_sharding_rules = { { \"*.weight\", \"replicate\" } }`."},
      {{"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mv", "aten::addmv",
        "aten::dot", "aten::linear", "aten::convolution*", "redco::linear_cross_entropy"},
       "The operands of a product are split along dimensions that do not match. After a layer that "
       "is split along its outputs, split the next one along its inputs: "
       "`params_sharding_rules = { { \"*.up.weight\", 0 }, { \"*.down.weight\", 1 } }`. With "
       "sequence_parallel each product gathers the output of its norm, which is intended."},
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
  return "It cannot work on its arguments as they are split here: use other operators, or "
         "replicate its arguments: a parameter by its name in "
         "`params_sharding_rules = { { \"*.weight\", \"replicate\" } }`, another tensor with "
         "`x:full()`.";
}

void sharding::warn_of_gather(const std::pair<const Move, Moved>* gathered) {
  constexpr int64_t many_bytes = 4 << 20;
  thread_local std::set<std::string> warned;
  if (!gathered || gathered->second.bytes < many_bytes) return;
  const Move& move = gathered->first;
  if (!warned.insert(move.what).second) return;
  TORCH_WARN(move.what, move.line.empty() ? "" : ", called at ", move.line,
             move.is_backward ? " in backward" : "",
             ", works on whole tensors: ", in_bytes(gathered->second.bytes),
             " have been sent so far to gather its arguments. ", advice(move.what));
}

}  // namespace redco
