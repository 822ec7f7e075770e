// Moves the ends of contiguous parts between neighbours.

#include "halo.h"

#include <algorithm>

namespace redco::sharding {

namespace {

at::Tensor piece_of(const at::Tensor& tensor, int64_t dim, const Span& piece, const Span& whole) {
  return tensor.narrow(dim, piece.begin - whole.begin, piece.length());
}

at::Tensor exchanged(const at::Tensor& part, int64_t dim, const HeldAndNeeded& ranges, Group& group,
                     bool adds_up) {
  const auto own = size_t(group.rank());
  const Span &held = ranges.held[own], &needed = ranges.needed[own];
  std::vector<int64_t> sizes = part.sizes().vec();
  sizes[size_t(dim)] = needed.length();
  at::Tensor result = part.new_zeros(sizes);
  const auto fill = [&](const Span& piece, const at::Tensor& values) {
    if (piece.length() == 0) return;
    const at::Tensor to = piece_of(result, dim, piece, needed);
    adds_up ? to.add_(values) : to.copy_(values);
  };
  if (const Span kept = common(held, needed); kept.length() > 0)
    fill(kept, piece_of(part, dim, kept, held));
  const int64_t longest = ranges.longest_piece();
  if (longest == 0) return result;
  sizes[size_t(dim)] = longest;
  sizes.insert(sizes.begin(), group.size());
  at::Tensor sent = part.new_zeros(sizes);
  for (size_t to = 0; to < ranges.needed.size(); ++to)
    if (const Span piece = common(held, ranges.needed[to]); to != own && piece.length() > 0)
      sent[int64_t(to)].narrow(dim, 0, piece.length()).copy_(piece_of(part, dim, piece, held));
  const at::Tensor received = group.all_to_all(sent);
  for (size_t from = 0; from < ranges.held.size(); ++from)
    if (const Span piece = common(ranges.held[from], needed); from != own)
      fill(piece, received[int64_t(from)].narrow(dim, 0, piece.length()));
  return result;
}

}  // namespace

std::vector<Span> parts_of_ranks(int64_t size, int64_t n_ranks, int64_t begin) {
  std::vector<Span> parts;
  for (int64_t rank = 0; rank < n_ranks; ++rank) {
    const Span own = span_of(size, 1, n_ranks, rank);
    parts.push_back({begin + own.begin, begin + own.end});
  }
  return parts;
}

Span common(const Span& a, const Span& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

int64_t HeldAndNeeded::longest_piece() const {
  int64_t longest = 0;
  for (size_t from = 0; from < held.size(); ++from)
    for (size_t to = 0; to < needed.size(); ++to)
      if (from != to) longest = std::max(longest, common(held[from], needed[to]).length());
  return longest;
}

bool HeldAndNeeded::sends_few() const {
  int64_t shortest = held.front().length();
  for (const Span& part : held) shortest = std::min(shortest, part.length());
  return longest_piece() * 2 <= shortest;
}

at::Tensor exchanged_along(const at::Tensor& part, int64_t dim, const HeldAndNeeded& ranges,
                           Group& group) {
  return exchanged(part, dim, ranges, group, false);
}

at::Tensor summed_along(const at::Tensor& part, int64_t dim, const HeldAndNeeded& ranges,
                        Group& group) {
  return exchanged(part, dim, ranges, group, true);
}

}  // namespace redco::sharding
