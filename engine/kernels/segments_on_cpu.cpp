// Attention within segments on CPUs.

#include "segment_kernels.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

namespace redco::kernels {

namespace {

// The queries [begin, end) of some rows, and the keys [first_key, end) that they see.
struct Piece {
  int64_t row, n_rows, begin, end, first_key;
  bool is_causal;       // all queries see all keys up to them
  int64_t n_added = 0;  // padding at the end, which no query of a piece sees

  at::Tensor queries(const at::Tensor& heads) const { return part_of(heads, begin); }
  at::Tensor keys(const at::Tensor& heads) const { return part_of(heads, first_key); }
  at::Tensor extended(const at::Tensor& part) const {
    if (n_added == 0) return part;
    std::vector<int64_t> pads(size_t(2 * part.dim() - 6));  // of the last dimension first
    pads.insert(pads.end(), {0, n_added});
    return at::constant_pad_nd(part, pads);
  }
  at::Tensor without_added(const at::Tensor& result) const {
    return result.narrow(2, 0, result.size(2) - n_added);
  }

 private:
  at::Tensor part_of(const at::Tensor& heads, int64_t first) const {
    return heads.narrow(0, row, n_rows).narrow(2, first, end - first);
  }
};

// In 16 bits oneDNN compiles products for each length, which takes 4 ms and 4 MB.
constexpr int64_t length_unit = 64;

// About half of the window. Keys outside the window cost as much as those in it. A piece of few
// queries has few such keys, but each piece has a fixed cost.
int64_t queries_at_once(int64_t window) {
  return std::clamp<int64_t>(window / 2 / length_unit * length_unit, length_unit, 256);
}

void add_pieces(std::vector<Piece>& pieces, const Piece& whole, std::optional<int64_t> window) {
  if (!window || *window >= whole.end - whole.begin) return pieces.push_back(whole);
  const int64_t n = queries_at_once(*window);
  for (int64_t begin = whole.begin; begin < whole.end; begin += n) {
    Piece piece = whole;
    piece.begin = begin;
    piece.end = std::min(begin + n, whole.end);
    piece.first_key = std::max(whole.begin, begin - *window + 1);
    piece.is_causal = begin == whole.begin && piece.end - begin <= *window;
    pieces.push_back(piece);
  }
}

std::vector<Piece> pieces_of(const at::Tensor& query, const SegmentOptions& options) {
  std::vector<Piece> pieces;
  if (!options.segment_ids) {
    add_pieces(pieces, {0, query.size(0), 0, query.size(2), 0, true}, options.window);
    return pieces;
  }
  for (const Segment& s : segments_of(*options.segment_ids)->all)
    add_pieces(pieces, {s.row, 1, s.begin, s.end, s.begin, true}, options.window);
  if (query.element_size() == 2)
    for (Piece& piece : pieces)
      piece.n_added = (length_unit - (piece.end - piece.begin) % length_unit) % length_unit;
  return pieces;
}

// The masks of pieces, one for each shape.
class Masks {
 public:
  Masks(const at::Tensor& query, const SegmentOptions& options)
      : options_(query.options()), window_(options.window.value_or(0)) {}

  std::optional<at::Tensor> of(const Piece& piece) {
    if (piece.is_causal) return std::nullopt;
    const int64_t n_queries = piece.end - piece.begin + piece.n_added;
    const int64_t before = piece.begin - piece.first_key;
    at::Tensor& mask = made_[{n_queries, before}];
    if (!mask.defined()) {
      const at::Tensor seen = at::ones({n_queries, before + n_queries}, at::kBool)
                                  .tril(before)
                                  .triu(before - window_ + 1);
      mask = at::zeros(seen.sizes(), options_)
                 .masked_fill_(seen.logical_not(), -std::numeric_limits<double>::infinity());
    }
    return mask;
  }

 private:
  at::TensorOptions options_;
  int64_t window_;
  std::map<std::pair<int64_t, int64_t>, at::Tensor> made_;
};

// Zeros in the memory order of LibTorch's kernels: the heads of a token are side by side.
at::Tensor zero_heads(const at::Tensor& like, at::ScalarType dtype) {
  return at::zeros({like.size(0), like.size(2), like.size(1), like.size(3)},
                   like.options().dtype(dtype))
      .transpose(1, 2);
}

}  // namespace

Attended attend_on_cpu(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                       const SegmentOptions& options) {
  const at::ScalarType dtype = query.scalar_type();
  at::Tensor out = zero_heads(query, dtype);
  at::Tensor sums = at::empty({query.size(0), query.size(1), query.size(2)},
                              query.options().dtype(dtype == at::kDouble ? dtype : at::kFloat));
  Masks masks(query, options);
  for (const Piece& piece : pieces_of(query, options)) {
    const auto queries = [&](const at::Tensor& x) { return piece.extended(piece.queries(x)); };
    const auto keys = [&](const at::Tensor& x) { return piece.extended(piece.keys(x)); };
    auto [own, own_sums] = at::_scaled_dot_product_flash_attention_for_cpu(
        queries(query), keys(key), keys(value), /*dropout_p=*/0, piece.is_causal, masks.of(piece),
        options.scale);
    piece.queries(out).copy_(piece.without_added(own));
    piece.queries(sums).copy_(piece.without_added(own_sums));
  }
  return {out, sums};
}

HeadGradients attend_on_cpu_backward(const at::Tensor& grad, const at::Tensor& query,
                                     const at::Tensor& key, const at::Tensor& value,
                                     const at::Tensor& out, const at::Tensor& logsumexp,
                                     const SegmentOptions& options) {
  const at::ScalarType dtype = query.scalar_type();
  // With a window, several pieces add to the gradients of a key.
  const at::ScalarType sum_dtype = options.window && dtype != at::kDouble ? at::kFloat : dtype;
  at::Tensor d_query = zero_heads(query, dtype);
  at::Tensor d_key = zero_heads(key, sum_dtype), d_value = zero_heads(value, sum_dtype);
  Masks masks(query, options);
  for (const Piece& piece : pieces_of(query, options)) {
    const auto queries = [&](const at::Tensor& x) { return piece.extended(piece.queries(x)); };
    const auto keys = [&](const at::Tensor& x) { return piece.extended(piece.keys(x)); };
    auto [own_query, own_key, own_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        queries(grad), queries(query), keys(key), keys(value), queries(out), queries(logsumexp),
        /*dropout_p=*/0, piece.is_causal, masks.of(piece), options.scale);
    piece.queries(d_query).copy_(piece.without_added(own_query));
    piece.keys(d_key).add_(piece.without_added(own_key));
    piece.keys(d_value).add_(piece.without_added(own_value));
  }
  return {d_query, d_key.to(dtype), d_value.to(dtype)};
}

}  // namespace redco::kernels
