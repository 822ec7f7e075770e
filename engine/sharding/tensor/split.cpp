// Splits a dimension of a tensor over ranks and joins the parts.

#include "split.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>

#include <algorithm>

namespace redco::sharding {

Split::Split(const Placement& placement, int64_t size, int64_t n_ranks)
    : dim_(placement.dim), blocks_(std::max<int64_t>(placement.n_blocks(size), 1)) {
  // If another split leaves this part no elements, it has no blocks.
  int64_t block_length = size == 0 ? 0 : placement.block_length(size);
  for (int64_t rank = 0; rank < n_ranks; ++rank) {
    if (placement.lengths && size > 0) {
      pieces_.push_back(placement.pieces(size, n_ranks, rank));
      spans_.push_back({0, placement.part_length(size, n_ranks, rank)});
    } else {
      spans_.push_back(span_of(block_length, placement, n_ranks, rank));
    }
  }
  for (const Span& span : spans_) longest_ = std::max(longest_, span.length());
  is_even_ = pieces_.empty() && std::all_of(spans_.begin(), spans_.end(), [&](const Span& span) {
               return span.length() == longest_;
             });
}

at::Tensor Split::open(const at::Tensor& tensor) const {
  return tensor.unflatten(dim_, {blocks_, tensor.size(dim_) / blocks_});
}

at::Tensor Split::close(const at::Tensor& tensor) const { return tensor.flatten(dim_, dim_ + 1); }

c10::ArrayRef<Span> Split::spans_of(size_t rank) const {
  return pieces_.empty() ? c10::ArrayRef<Span>(spans_[rank]) : c10::ArrayRef<Span>(pieces_[rank]);
}

at::Tensor Split::padded(const at::Tensor& part) const {
  int64_t missing = longest_ - part.size(dim_) / blocks_;
  if (missing == 0) return part;
  std::vector<int64_t> pad(size_t(2 * (part.dim() - dim_)), 0);
  pad.back() = missing;
  return close(at::constant_pad_nd(open(part), pad));
}

at::Tensor Split::unpadded(const at::Tensor& part, int64_t rank) const {
  int64_t length = spans_[size_t(rank)].length();
  return length == longest_ ? part : close(open(part).narrow(dim_ + 1, 0, length));
}

at::Tensor Split::part(const at::Tensor& whole, int64_t rank) const {
  if (!pieces_.empty()) {
    std::vector<at::Tensor> pieces;
    for (const Span& piece : pieces_[size_t(rank)])
      pieces.push_back(whole.narrow(dim_, piece.begin, piece.length()));
    return at::cat(pieces, dim_);
  }
  const Span& span = spans_[size_t(rank)];
  if (blocks_ == 1) return whole.narrow(dim_, span.begin, span.length());
  return close(open(whole).narrow(dim_ + 1, span.begin, span.length()));
}

at::Tensor Split::parts(const at::Tensor& whole) const {
  if (is_even_) {
    // [..., blocks, n, length, ...] to [n, ..., blocks, length, ...]
    auto n = int64_t(spans_.size());
    at::Tensor rows = open(whole).unflatten(dim_ + 1, {n, longest_}).movedim(dim_ + 1, 0);
    return rows.flatten(dim_ + 1, dim_ + 2).contiguous();
  }
  std::vector<int64_t> sizes = whole.sizes().vec();
  sizes[size_t(dim_)] = longest_part();
  sizes.insert(sizes.begin(), int64_t(spans_.size()));
  at::Tensor rows = whole.new_zeros(sizes);
  if (whole.is_meta()) return rows;  // there may be thousands of imagined ranks
  for (size_t rank = 0; rank < spans_.size(); ++rank) {
    at::Tensor own = open(part(whole, int64_t(rank)));
    open(rows[int64_t(rank)]).narrow(dim_ + 1, 0, spans_[rank].length()).copy_(own);
  }
  return rows;
}

at::Tensor Split::joined(const at::Tensor& parts) const {
  if (is_even_) {
    // [n, ..., blocks, length, ...] to [..., blocks, n, length, ...]
    at::Tensor opened = parts.unflatten(dim_ + 1, {blocks_, longest_});
    // Makes the result contiguous: a part of one element could be joined by a view in another
    // memory order.
    return close(opened.movedim(0, dim_ + 1).flatten(dim_ + 1, dim_ + 2)).contiguous();
  }
  std::vector<int64_t> sizes = parts.sizes().slice(1).vec();
  sizes[size_t(dim_)] = 0;
  for (const Span& span : spans_) sizes[size_t(dim_)] += blocks_ * span.length();
  at::Tensor whole = parts.new_empty(sizes);
  if (whole.is_meta()) return whole;
  for (size_t rank = 0; rank < spans_.size(); ++rank) {
    const at::Tensor own = open(parts[int64_t(rank)]);
    int64_t begin = 0;
    for (const Span& span : spans_of(rank)) {
      open(whole)
          .narrow(dim_ + 1, span.begin, span.length())
          .copy_(own.narrow(dim_ + 1, begin, span.length()));
      begin += span.length();
    }
  }
  return whole;
}

}  // namespace redco::sharding
