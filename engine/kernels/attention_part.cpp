// Attention of few queries to a part of the keys, as where processes hold parts of a cache. Its
// results of all parts can be combined: the weight of each is exp(logsumexp).

#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <torch/library.h>

#include <limits>
#include <optional>
#include <tuple>

namespace redco {

namespace {

// Aligns a mask [..., queries, keys] with scores [batch, heads of keys, queries of a head, keys].
at::Tensor aligned(const at::Tensor& mask, const at::Tensor& query, int64_t n_kv_heads) {
  const int64_t n_heads = query.size(1), length = query.size(2);
  at::Tensor all = mask;
  while (all.dim() < 4) all = all.unsqueeze(0);
  return all.expand({all.size(0), n_heads, length, all.size(3)})
      .reshape({all.size(0), n_kv_heads, n_heads / n_kv_heads * length, all.size(3)});
}

// query: [batch, heads, length, size]; key and value may have fewer heads, each for a run of
// consecutive query heads. Results, in the type of sums: [batch, heads, length, size], and
// [batch, heads, length], -inf where a query sees no key.
std::tuple<at::Tensor, at::Tensor> attention_part(const at::Tensor& query, const at::Tensor& key,
                                                  const at::Tensor& value,
                                                  const std::optional<at::Tensor>& mask,
                                                  double scale) {
  const at::ScalarType type = at::toOpMathType(query.scalar_type());
  const int64_t batch = query.size(0), n_heads = query.size(1), length = query.size(2),
                n_kv_heads = key.size(1), n_rows = n_heads / n_kv_heads * length;
  const at::Tensor rows =
      query.to(type).mul(scale).reshape({batch, n_kv_heads, n_rows, query.size(3)});
  at::Tensor scores = at::matmul(rows, key.to(type).transpose(2, 3));
  if (mask) {
    const at::Tensor seen = aligned(*mask, query, n_kv_heads);
    if (seen.scalar_type() == at::kBool)
      scores.masked_fill_(seen.logical_not(), -std::numeric_limits<double>::infinity());
    else
      scores.add_(seen);
  }
  const at::Tensor logsumexp = at::logsumexp(scores, {-1}, true);
  const at::Tensor weights = scores.sub_(logsumexp.masked_fill(logsumexp.isneginf(), 0)).exp_();
  const at::Tensor sums = at::matmul(weights, value.to(type));
  return {sums.reshape({batch, n_heads, length, value.size(3)}),
          logsumexp.reshape({batch, n_heads, length})};
}

TORCH_LIBRARY_FRAGMENT(redco, m) {
  m.def(
      "_attention_part(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, float scale) -> "
      "(Tensor, Tensor)",
      torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &attention_part));
}

}  // namespace

}  // namespace redco
