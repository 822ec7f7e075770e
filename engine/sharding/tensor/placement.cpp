// Formats placements, and computes the ranges of ranks.

#include <redco/sharding.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <set>
#include <sstream>

namespace redco {

namespace {

const char* name(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::max:
      return "max";
    case ReduceOp::min:
      return "min";
  }
  return "?";
}

}  // namespace

Placement Placement::shard_blocks(int64_t dim, const std::vector<int64_t>& lengths, int64_t grain) {
  if (lengths.size() < 2) return shard(dim, 0, grain);
  if (std::ranges::adjacent_find(lengths, std::not_equal_to<>()) == lengths.end())
    return shard(dim, lengths[0], grain);
  return shard_prefix(dim, lengths, grain);
}

Placement Placement::shard_prefix(int64_t dim, const std::vector<int64_t>& lengths, int64_t grain) {
  static std::mutex mutex;
  static auto& known = *new std::set<std::vector<int64_t>>;  // placements may outlive statics
  Placement placement = shard(dim, 0, grain);
  std::lock_guard lock(mutex);
  placement.lengths = &*known.insert(lengths).first;
  return placement;
}

bool Placement::is_prefix(int64_t size) const {
  return lengths && std::accumulate(lengths->begin(), lengths->end(), int64_t{0}) > size;
}

std::vector<Span> Placement::pieces(int64_t size, int64_t n_ranks, int64_t rank) const {
  std::vector<int64_t> same;
  if (!lengths) same.assign(size_t(n_blocks(size)), block_length(size));
  std::vector<Span> pieces;
  int64_t begin = 0;
  for (int64_t length : lengths ? *lengths : same) {
    const Span own = span_of(length, grain, n_ranks, rank);
    pieces.push_back({std::min(begin + own.begin, size), std::min(begin + own.end, size)});
    begin += length;
  }
  return pieces;
}

int64_t Placement::part_length(int64_t size, int64_t n_ranks, int64_t rank) const {
  if (size == 0) return 0;  // another rank holds all blocks
  if (!lengths) return span_of(block_length(size), *this, n_ranks, rank).length() * n_blocks(size);
  int64_t sum = 0;
  for (const Span& piece : pieces(size, n_ranks, rank)) sum += piece.length();
  return sum;
}

std::string to_string(const Placement& placement) {
  std::ostringstream text;
  switch (placement.kind) {
    case Placement::replicated:
      text << "replicate";
      break;
    case Placement::sharded:
      if (placement.is_on_rank()) {
        text << "on_rank(" << placement.rank << ")";
        break;
      }
      text << "shard(" << placement.dim;
      if (placement.block > 0) text << ", block = " << placement.block;
      if (placement.lengths) {
        for (size_t i = 0; i < placement.lengths->size(); ++i)
          text << (i == 0 ? ", block = {" : ", ") << (*placement.lengths)[i];
        text << "}";
      }
      if (placement.grain > 1) text << ", grain = " << placement.grain;
      text << ")";
      break;
    case Placement::partial:
      text << "partial(" << name(placement.op) << ")";
      break;
  }
  return text.str();
}

std::string to_string(const Placements& placements) {
  std::string text;
  for_each_shown(placements, [&](const char* name, const Placement& placement) {
    text.append(text.empty() ? "{" : ", ").append(name).append(" = ").append(to_string(placement));
  });
  return text + "}";
}

Placements placements_on(Mesh::Role role, const Placement& placement) {
  Placements placements;
  for (Mesh::Dim dim : Mesh::dims)
    if (Mesh::has(dim, role)) placements[dim] = placement;
  return placements;
}

Span span_of(int64_t size, int64_t grain, int64_t n_ranks, int64_t rank) {
  int64_t units = size / grain;
  return {units * rank / n_ranks * grain, units * (rank + 1) / n_ranks * grain};
}

Span span_of(int64_t size, const Placement& placement, int64_t n_ranks, int64_t rank) {
  if (!placement.is_on_rank()) return span_of(size, placement.grain, n_ranks, rank);
  const int64_t owner = placement.rank % n_ranks;
  return {owner < rank ? size : 0, owner <= rank ? size : 0};
}

Span span_of(int64_t size, Mesh::Role role, const Mesh& mesh) {
  Span own{0, size};
  for (Mesh::Dim dim : Mesh::dims_of(role)) {
    Span part = span_of(own.length(), 1, mesh.size(dim), mesh.coordinate(dim));
    own = {own.begin + part.begin, own.begin + part.end};
  }
  return own;
}

}  // namespace redco
