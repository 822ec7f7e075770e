// Formats placements, and computes the ranges of ranks.

#include <redco/sharding.h>

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

std::string to_string(const Placement& placement) {
  std::ostringstream text;
  switch (placement.kind) {
    case Placement::replicated:
      text << "replicate";
      break;
    case Placement::sharded:
      text << "shard(" << placement.dim;
      if (placement.block > 0) text << ", block = " << placement.block;
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

Span span_of(int64_t size, Mesh::Role role, const Mesh& mesh) {
  Span own{0, size};
  for (Mesh::Dim dim : Mesh::dims_of(role)) {
    Span part = span_of(own.length(), 1, mesh.size(dim), mesh.coordinate(dim));
    own = {own.begin + part.begin, own.begin + part.end};
  }
  return own;
}

}  // namespace redco
