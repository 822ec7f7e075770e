// Rules for cat and stack.

#include "halo.h"
#include "rules.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace redco::sharding {

namespace {

int64_t joined_dim(const Call& call, int64_t n_dims) { return call.dims("dim", n_dims)->front(); }

// Whether partial sums would be joined with whole tensors.
bool mixes_sums(const Call& call) {
  return std::ranges::any_of(Mesh::dims, [&](Mesh::Dim dim) {
    auto has = [&](auto test) {
      return std::ranges::any_of(call.tensors,
                                 [&](const auto& each) { return test(each.placements[dim]); });
    };
    return has([](const Placement& each) { return each.is_partial(); }) &&
           has([](const Placement& each) { return each.is_replicated(); });
  });
}

// Values are only moved, so all inputs may be partial together. If a partial sum is joined with
// whole tensors, reduces it before, because it is smaller then. Under sequence parallelism does
// not, because a reduce-scatter of the result may follow, which sends less.
CallPlan plan_of_moves(const Call& call, Factors factors) {
  bool keeps_sums = call.mesh->sequence_parallel() || !mixes_sums(call);
  if (keeps_sums && call.tensors.size() < 64)
    factors.linear = {(uint64_t{1} << call.tensors.size()) - 1};
  factors.only_moves = true;
  return plan_by_factors(call, factors);
}

// Whether units of `a` and of `b` elements give the same split.
bool cut_alike(int64_t size, int64_t a, int64_t b, int64_t n_ranks) {
  for (int64_t rank = 0; rank < n_ranks; ++rank)
    if (span_of(size, a, n_ranks, rank).end != span_of(size, b, n_ranks, rank).end) return false;
  return true;
}

// Tensors that are joined along a split dimension become blocks of the result. Returns the grain of
// these blocks; nullopt if the parts of the tensors are not parts of such blocks. Some tensors may
// be partial sums, such as gradients of keys and values that all ranks have read: one rank gets
// each of them whole.
std::optional<int64_t> grain_of_blocks(const Call& call, int64_t dim, Mesh::Dim mesh_dim) {
  int64_t unit = 0;
  bool any_split = false, any_grain = false;
  for (const TensorArgument& argument : call.tensors) {
    const Placement& placement = argument.placements[mesh_dim];
    int64_t size = argument.sizes()[size_t(dim)];
    if (placement.is_sharded() && placement.dim == dim) {
      any_split = true;
      any_grain |= placement.grain > 1;
      if (placement.is_in_blocks()) return std::nullopt;
      if (splitting(argument.placements, dim).size() > 1) return std::nullopt;
    } else if (placement.is_partial() && size > 0 && (unit == 0 || unit == size)) {
      unit = size;
    } else {
      unit = -1;
    }
  }
  if (any_grain && unit == 0) return std::nullopt;
  if (!any_split || unit == 0) return 1;
  for (const TensorArgument& argument : call.tensors) {
    const Placement& placement = argument.placements[mesh_dim];
    int64_t size = argument.sizes()[size_t(dim)];
    if (unit < 0 || size % unit != 0) return std::nullopt;
    if (placement.is_sharded() &&
        !cut_alike(size, placement.grain, unit, call.mesh->size(mesh_dim)))
      return std::nullopt;
  }
  return unit;
}

// Finds a context dimension that splits the positions of some tensors, which are joined along the
// positions with whole tensors.
std::optional<Mesh::Dim> joins_positions(const Call& call, int64_t dim, int64_t n_dims) {
  int64_t length = 0;
  for (const TensorArgument& argument : call.tensors) {
    if (argument.tensor.dim() != n_dims) return std::nullopt;
    length += argument.sizes()[size_t(dim)];
  }
  for (Mesh::Dim over : Mesh::dims_of(Mesh::context)) {
    const auto is_split = [&](const TensorArgument& argument) {
      return argument.placements[over] == Placement::shard(dim) &&
             splitting(argument.placements, dim).size() == 1;
    };
    if (length >= call.mesh->size(over) && std::ranges::any_of(call.tensors, is_split) &&
        std::ranges::all_of(call.tensors, [&](const TensorArgument& argument) {
          return is_split(argument) || argument.placements[over].is_replicated();
        }))
      return over;
  }
  return std::nullopt;
}

// Joins positions that context shards split, and gives each rank its part of the result.
CallPlan joined_positions(const Call& call, int64_t dim, Mesh::Dim over) {
  Call others = call;
  for (TensorArgument& argument : others.tensors) argument.placements[over] = {};
  Letters all = letters(call.tensors[0].tensor.dim());
  all[size_t(dim)] = -1;
  Factors factors{std::vector<Letters>(call.tensors.size(), all), {all}};
  CallPlan plan = plan_of_moves(others, std::move(factors));
  std::vector<int64_t> lengths;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    plan.inputs[i][over] = call.tensors[i].placements[over];
    lengths.push_back(call.tensors[i].sizes()[size_t(dim)]);
  }
  const int64_t length = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  plan.outputs[0].placements[over] = Placement::shard(dim);
  plan.outputs[0].sizes[size_t(dim)] = length;
  plan.run = [=, inputs = plan.inputs](const Operator& op, torch::jit::Stack& stack,
                                       const Mesh& mesh) {
    const int64_t n_ranks = mesh.size(over), rank = mesh.coordinate(over);
    std::vector<at::Tensor> pieces = stack[0].toTensorVector();
    int64_t begin = 0;
    for (size_t i = 0; i < pieces.size(); begin += lengths[i++]) {
      const Span own{begin, begin + lengths[i]};
      HeldAndNeeded ranges{parts_of_ranks(lengths[i], n_ranks, begin), {}};
      for (const Span& part : parts_of_ranks(length, n_ranks))
        ranges.needed.push_back(common(part, own));
      const Span& needed = ranges.needed[size_t(rank)];
      pieces[i] =
          inputs[i][over].is_sharded()
              ? exchanged_along(pieces[i], dim, ranges, mesh.group(over))
              : pieces[i].narrow(dim, std::min(needed.begin - begin, lengths[i]), needed.length());
    }
    stack[0] = pieces;
    op.handle.callBoxed(&stack);
  };
  return plan;
}

std::optional<CallPlan> cat(const Call& call) {
  int64_t n_dims = 0;
  for (const TensorArgument& argument : call.tensors)
    n_dims = std::max(n_dims, argument.tensor.dim());
  int64_t dim = joined_dim(call, n_dims);
  if (call.find("out")) return std::nullopt;
  if (const auto over = joins_positions(call, dim, n_dims))
    return joined_positions(call, dim, *over);
  // Tensors split along the joined dimension become blocks of the result; each block stays split.
  bool in_blocks = n_dims > 0 && std::ranges::all_of(call.tensors, [&](const auto& argument) {
                     return argument.tensor.dim() == n_dims;
                   });
  std::array<int64_t, Mesh::n_dims> grains;
  for (Mesh::Dim i : Mesh::dims) {
    std::optional<int64_t> grain = in_blocks ? grain_of_blocks(call, dim, i) : std::nullopt;
    in_blocks &= grain.has_value();
    grains[i] = grain.value_or(1);
  }
  Letters all = letters(n_dims);
  Factors factors;
  for (const TensorArgument& argument : call.tensors) {
    Letters own = all;
    if (!in_blocks) own[size_t(dim)] = -1;
    // A one-dimensional empty tensor can be joined to any.
    if (argument.tensor.dim() != n_dims) own = Letters(size_t(argument.tensor.dim()), int8_t(-1));
    factors.inputs.push_back(own);
  }
  if (!in_blocks) all[size_t(dim)] = -1;
  factors.outputs = {all};
  CallPlan plan = plan_of_moves(call, std::move(factors));
  if (!in_blocks) return plan;
  OutputPlan& output = plan.outputs[0];
  std::vector<int64_t> lengths;
  for (const TensorArgument& argument : call.tensors)
    lengths.push_back(argument.sizes()[size_t(dim)]);
  output.sizes[size_t(dim)] = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  for (Mesh::Dim i : splitting(output.placements, dim)) {
    output.placements[i] = Placement::shard_blocks(dim, lengths, grains[i]);
    for (size_t k = 0; k < plan.inputs.size(); ++k)
      if (call.tensors[k].placements[i].is_partial()) plan.inputs[k][i].grain = int32_t(grains[i]);
  }
  return plan;
}

std::optional<CallPlan> stack(const Call& call) {
  if (call.find("out")) return std::nullopt;
  int64_t n_dims = call.tensors[0].tensor.dim();
  Letters all = letters(n_dims), result = all;
  result.insert(result.begin() + joined_dim(call, n_dims + 1), int8_t(-1));
  Factors factors;
  factors.inputs.assign(call.tensors.size(), all);
  factors.outputs = {result};
  return plan_of_moves(call, std::move(factors));
}

}  // namespace

const RuleTable& joining_rules() {
  static const RuleTable table = {{"aten::cat", with_cost(cat, {.passes = 2.4})},
                                  {"aten::stack", with_cost(stack, {.passes = 2.4})}};
  return table;
}

}  // namespace redco::sharding
