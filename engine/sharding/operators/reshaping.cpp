// Rules for views that regroup dimensions.

#include "rules.h"

#include <algorithm>

namespace redco::sharding {

std::vector<int64_t> resolved_sizes(std::vector<int64_t> sizes, int64_t n_elements) {
  int64_t known = 1;
  for (int64_t size : sizes)
    if (size >= 0) known *= size;
  for (int64_t& size : sizes)
    if (size < 0) size = known == 0 ? 0 : n_elements / known;
  return sizes;
}

namespace {

// Dimensions [first, last) of both shapes that hold the same elements.
struct EqualDims {
  size_t in_first, in_last, out_first, out_last;
};

int64_t count_between(at::IntArrayRef sizes, size_t first, size_t last) {
  int64_t result = 1;
  for (size_t i = first; i < last; ++i) result *= sizes[i];
  return result;
}

// Empty for tensors without elements, and for different numbers of elements, which the operator
// refuses.
std::vector<EqualDims> equal_dims(at::IntArrayRef in, at::IntArrayRef out) {
  std::vector<EqualDims> runs;
  size_t i = 0, j = 0;
  int64_t n_elements = count_between(in, 0, in.size());
  if (n_elements == 0 || n_elements != count_between(out, 0, out.size())) return runs;
  while (i < in.size() || j < out.size()) {
    EqualDims run{i, i, j, j};
    int64_t in_product = i < in.size() ? in[i++] : 1;
    int64_t out_product = j < out.size() ? out[j++] : 1;
    while (in_product != out_product)
      if (in_product < out_product)
        in_product *= in[i++];
      else
        out_product *= out[j++];
    run.in_last = i;
    run.out_last = j;
    runs.push_back(run);
  }
  return runs;
}

// A dimension of the tensor, and the dimension of the result that the same ranks split.
struct Match {
  int64_t in, in_inner;    // length of the dimension, and elements within one of its indices
  int64_t out, out_inner;  // the same of the result
};

// Whether each rank has the same elements in both shapes.
bool splits_alike(const Match& part, int64_t in_grain, int64_t out_grain, int64_t n_ranks) {
  if (part.in % in_grain != 0 || part.out % out_grain != 0) return false;
  for (int64_t rank = 0; rank < n_ranks; ++rank)
    if (span_of(part.in, in_grain, n_ranks, rank).end * part.in_inner !=
        span_of(part.out, out_grain, n_ranks, rank).end * part.out_inner)
      return false;
  return true;
}

// Returns the placement after a view that keeps the same elements on the same ranks. Nullopt if the
// result has no such split.
std::optional<Placement> placement_after(const Placement& placement, at::IntArrayRef in,
                                         at::IntArrayRef out, int64_t n_ranks,
                                         bool keeps_rows_apart) {
  auto dim = size_t(placement.dim);
  for (const EqualDims& run : equal_dims(in, out)) {
    if (dim < run.in_first || dim >= run.in_last) continue;
    // Each rank holds equal stretches of the run, cut at the same positions in both shapes.
    int64_t inner = count_between(in, dim + 1, run.in_last);
    int64_t block = placement.block_length(in[dim]);
    if (placement.lengths) {
      for (size_t to = run.out_first; to < run.out_last; ++to)
        if (out[to] == in[dim] && count_between(out, to + 1, run.out_last) == inner) {
          Placement same = placement;
          same.dim = int32_t(to);
          return same;
        }
      continue;
    }
    for (size_t to = run.out_first; to < run.out_last; ++to) {
      int64_t out_inner = count_between(out, to + 1, run.out_last);
      int64_t out_block = block * inner / out_inner;
      if (out_block == 0 || out_block * out_inner != block * inner || out[to] % out_block != 0)
        continue;
      // Gathers split rows of a matrix: a product with a weight usually follows and needs all rows.
      // Under sequence parallelism keeps the rows split until the product, so that autograd saves
      // only the local part.
      if (out_block < out[to] && placement.block == 0 && out.size() < 3 && !keeps_rows_apart)
        continue;
      int64_t grain = std::max<int64_t>(1, placement.grain * inner / out_inner);
      Match whole = {block, inner, out_block, out_inner};
      bool may_be_one = out_block % n_ranks == 0 || out_block % grain != 0;
      if (may_be_one && splits_alike(whole, placement.grain, 1, n_ranks)) grain = 1;
      if (splits_alike(whole, placement.grain, grain, n_ranks))
        return Placement::shard(int64_t(to), out_block == out[to] ? 0 : out_block, grain);
    }
  }
  return std::nullopt;
}

// Returns the lengths of the parts that each rank of these mesh dimensions has of both shapes.
std::vector<Match> parts_of(const Match& whole, const MeshDims& over, const Placements& in,
                            const Placements& out, const Mesh& mesh) {
  std::vector<Match> parts = {whole};
  for (Mesh::Dim dim : over) {
    std::vector<Match> smaller;
    for (Match part : parts)
      for (int64_t rank = 0; rank < mesh.size(dim); ++rank) {
        Match own = part;
        own.in = span_of(part.in, in[dim].grain, mesh.size(dim), rank).length();
        own.out = span_of(part.out, out[dim].grain, mesh.size(dim), rank).length();
        smaller.push_back(own);
      }
    parts = std::move(smaller);
  }
  return parts;
}

// Returns the placement on `over.back()` after a view. It splits the parts of the other mesh
// dimensions, and the view keeps these parts apart along one dimension. Nullopt if there is no such
// placement.
std::optional<Placement> moved_again(const MeshDims& over, const Placements& before,
                                     const Placements& after, at::IntArrayRef in,
                                     at::IntArrayRef out, const Mesh& mesh) {
  Mesh::Dim last = over.back();
  MeshDims outer(over.begin(), over.end() - 1);
  int64_t to = after[outer.front()].dim;
  MeshDims there = splitting(after, to);
  while (!there.empty() && there.back() > last) there.pop_back();  // these split the new parts
  if (there != over && there != outer) return std::nullopt;
  for (Mesh::Dim dim : outer)
    if (!after[dim].is_sharded() || before[dim].is_in_blocks() || after[dim].is_in_blocks())
      return std::nullopt;
  const Placement& placement = before[last];
  if (placement.is_in_blocks()) return std::nullopt;
  auto dim = size_t(placement.dim), to_dim = size_t(to);
  for (const EqualDims& run : equal_dims(in, out)) {
    if (dim < run.in_first || dim >= run.in_last) continue;
    Match whole = {in[dim], count_between(in, dim + 1, run.in_last), out[to_dim],
                   count_between(out, to_dim + 1, run.out_last)};
    std::vector<Match> parts = parts_of(whole, outer, before, after, mesh);
    for (int64_t grain : {int64_t{1}, placement.grain * whole.in_inner / whole.out_inner}) {
      if (grain == 0) continue;
      Placements result = after;
      result[last] = Placement::shard(to, 0, grain);
      if (can_split_again(whole.out, over, result, mesh) &&
          std::ranges::all_of(parts, [&](const Match& part) {
            return splits_alike(part, placement.grain, grain, mesh.size(last));
          }))
        return result[last];
    }
  }
  return std::nullopt;
}

// Reduces a partial argument first, because the bytes of terms do not add up. If the types differ
// in size, the last dimension must not be split.
std::optional<CallPlan> view_as_type(const Call& call) {
  const at::Tensor& tensor = call.tensors[0].tensor;
  auto type = at::ScalarType(call.integer("dtype", 0));
  Letters all = letters(tensor.dim());
  if (c10::elementSize(type) != c10::elementSize(tensor.scalar_type())) all.back() = -1;
  return plan_by_factors(call, {{all}, {all}});
}

std::optional<CallPlan> view(const Call& call) {
  const TensorArgument& tensor = call.tensors[0];
  int size_argument = call.index_of("size");
  if (size_argument < 0) return view_as_type(call);
  at::IntArrayRef in = tensor.sizes();
  std::vector<int64_t> out =
      resolved_sizes(call.arguments[size_t(size_argument)].toIntVector(), tensor.tensor.numel());
  // The operator itself throws for these sizes.
  if (count_between(out, 0, out.size()) != tensor.tensor.numel()) return std::nullopt;
  CallPlan plan;
  plan.inputs.push_back(tensor.placements);
  OutputPlan output;
  output.placements = tensor.placements;
  for (Mesh::Dim i : Mesh::dims) {
    const Placement& placement = tensor.placements[i];
    if (!placement.is_sharded()) continue;
    int64_t n_ranks = call.mesh->size(i);
    bool keeps_rows_apart =
        Mesh::has(i, Mesh::context) || (i == Mesh::mp && call.mesh->sequence_parallel());
    std::optional<Placement> after = placement_after(placement, in, out, n_ranks, keeps_rows_apart);
    if (!after) plan.inputs[0][i] = {};
    output.placements[i] = after.value_or(Placement());
  }
  // Handles splits of parts: they match between blocks, or as `moved_again` says.
  for (Mesh::Dim last : Mesh::dims) {
    MeshDims was = splitting_with(tensor.placements, last);
    if (was.size() > 1)
      if (auto again =
              moved_again(was, tensor.placements, output.placements, in, out, *call.mesh)) {
        plan.inputs[0][last] = tensor.placements[last];
        output.placements[last] = *again;
        continue;
      }
    MeshDims is = splitting_with(output.placements, last);
    auto fits = [&](const MeshDims& over, const Placements& placements, at::IntArrayRef sizes) {
      return over.size() < 2 ||
             (placements[last].block > 0 &&
              can_split_again(sizes[size_t(placements[last].dim)], over, placements, *call.mesh));
    };
    if (!fits(was, tensor.placements, in) || !fits(is, output.placements, out))
      plan.inputs[0][last] = output.placements[last] = {};
  }
  Sizes local = local_sizes(out, output.placements, *call.mesh);
  plan.outputs.push_back(output);
  plan.run = [local](const Operator&, torch::jit::Stack& stack, const Mesh&) {
    // The strides of a gathered copy may not allow the view.
    stack = {stack[0].toTensor().reshape(local)};
  };
  return plan;
}

}  // namespace

std::vector<int64_t> opened_dimension(at::IntArrayRef in, const std::vector<int64_t>& out,
                                      int64_t dim) {
  const std::vector<int64_t> sizes = resolved_sizes(out, count_between(in, 0, in.size()));
  for (const EqualDims& run : equal_dims(in, sizes))
    if (run.in_first == size_t(dim) && run.in_last == size_t(dim) + 1)
      return {sizes.begin() + int64_t(run.out_first), sizes.begin() + int64_t(run.out_last)};
  return {};
}

int64_t fused_parts(at::IntArrayRef in, at::IntArrayRef out, int64_t dim, int64_t n_inputs) {
  const std::vector<int64_t> opened = opened_dimension(in, out.vec(), dim);
  bool is_fused = opened.size() >= 3 || (opened.size() == 2 && opened[1] == n_inputs);
  return is_fused ? opened[0] : 0;
}

const RuleTable& reshaping_rules() {
  static const RuleTable table = [] {
    RuleTable table = {
        {"aten::view", view},
        {"aten::_unsafe_view", view},
        {"aten::_reshape_alias", view},
    };
    for (auto& [name, facts] : table) facts.regroups = true;
    table["aten::_unsafe_view"].is_view = true;
    return table;
  }();
  return table;
}

}  // namespace redco::sharding
