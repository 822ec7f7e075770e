// Rules for views that permute, select or split dimensions.

#include "../tensor/split.h"
#include "rules.h"

#include <ATen/ops/cat.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <numeric>

namespace redco::sharding {

std::optional<CallPlan> view_by_factors(const Call& call, Factors factors) {
  factors.linear = {1};
  factors.only_moves = true;
  return plan_by_factors(call, factors);
}

namespace {

int64_t wrapped(int64_t dim, int64_t n_dims) { return dim < 0 ? dim + n_dims : dim; }

std::optional<CallPlan> same(const Call& call) {
  Letters all = letters(call.tensors[0].tensor.dim());
  return view_by_factors(call, {{all}, {all}});
}

std::optional<CallPlan> permute(const Call& call) {
  const std::vector<int64_t> order = *dimension_order(call);
  Letters output;
  for (int64_t dim : order) output.push_back(int8_t(dim));
  return view_by_factors(call, {{letters(call.tensors[0].tensor.dim())}, {output}});
}

std::optional<CallPlan> unsqueeze(const Call& call) {
  int64_t n_dims = call.tensors[0].tensor.dim();
  Letters output = letters(n_dims);
  output.insert(output.begin() + wrapped(call.integer("dim", 0), n_dims + 1), int8_t(-1));
  return view_by_factors(call, {{letters(n_dims)}, {output}});
}

std::optional<CallPlan> squeeze(const Call& call) {
  int64_t n_dims = call.tensors[0].tensor.dim();
  auto dims = call.dims("dim", n_dims);
  Factors factors{{letters(n_dims)}, {Letters()}};
  std::vector<int64_t> going;
  for (int64_t dim = 0; dim < n_dims; ++dim) {
    bool is_named = !dims || std::find(dims->begin(), dims->end(), dim) != dims->end();
    if (is_named && call.tensors[0].sizes()[size_t(dim)] == 1) {
      going.push_back(dim);
      factors.whole |= uint64_t{1} << dim;
    } else {
      factors.outputs[0].push_back(int8_t(dim));
    }
  }
  std::optional<CallPlan> plan = view_by_factors(call, std::move(factors));
  // Squeezes by explicit dimensions, because a part may have size 1 when the whole is larger.
  plan->run = [going](const Operator& op, torch::jit::Stack& stack, const Mesh&) {
    at::Tensor local = stack[0].toTensor();
    if (op.is_inplace_view) {
      for (size_t i = going.size(); i-- > 0;) local.squeeze_(going[i]);
      stack = {local};
    } else {
      stack = {local.squeeze(going)};
    }
  };
  return plan;
}

// Reduces partial sums before it repeats them: fewer bytes move.
std::optional<CallPlan> expand(const Call& call) {
  at::IntArrayRef sizes = call.tensors[0].sizes();
  std::vector<int64_t> target = call.find("size")->toIntVector();
  size_t shift = target.size() - sizes.size();
  Factors factors{{letters(int64_t(sizes.size()))}, {Letters(target.size(), int8_t(-1))}};
  bool grows = c10::multiply_integers(target.begin(), target.begin() + int64_t(shift)) > 1;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    int64_t& size = target[shift + dim];
    if (size == sizes[dim] || size == -1) {
      factors.outputs[0][shift + dim] = int8_t(dim);
      size = -1;
    } else {
      factors.whole |= uint64_t{1} << dim;
      grows = true;
    }
  }
  factors.linear = {!grows};
  factors.only_moves = true;
  CallPlan plan = plan_by_factors(call, factors);
  plan.arguments.emplace_back(call.index_of("size"), target);
  return plan;
}

// Views complex numbers as pairs of real ones, or the reverse. The last dimension of the pairs
// stays whole.
std::optional<CallPlan> complex_view(const Call& call) {
  const at::Tensor& tensor = call.tensors[0].tensor;
  const Letters numbers = letters(tensor.dim() - !tensor.is_complex());
  Letters pairs = numbers;
  pairs.push_back(int8_t(-1));
  Factors factors{{pairs}, {numbers}};
  if (tensor.is_complex()) std::swap(factors.inputs, factors.outputs);
  factors.linear = {1};
  return plan_by_factors(call, factors);
}

// All dimensions but `dim` may be split.
Letters all_but(int64_t n_dims, int64_t dim, Factors& factors) {
  factors.whole |= uint64_t{1} << dim;
  return letters(n_dims);
}

std::optional<CallPlan> select(const Call& call) {
  int64_t n_dims = call.tensors[0].tensor.dim();
  int64_t dim = wrapped(call.integer("dim", 0), n_dims);
  Factors factors;
  factors.inputs.push_back(all_but(n_dims, dim, factors));
  Letters output = letters(n_dims);
  output.erase(output.begin() + dim);
  factors.outputs.push_back(output);
  return view_by_factors(call, std::move(factors));
}

// Whether a dimension is sharded with one block for each of these pieces.
bool is_block_each(const Placement& placement, int64_t dim, const std::vector<int64_t>& pieces) {
  Placement blocks = Placement::shard_blocks(dim, pieces, placement.grain);
  return placement.is_in_blocks() && placement == blocks;
}

// Cuts a local tensor into pieces. One collective gathers all pieces that have fewer blocks than
// there are ranks. Each rank keeps its part of the other pieces.
std::vector<at::Tensor> pieces_of_part(const at::Tensor& local, int64_t dim,
                                       const std::vector<int64_t>& pieces, int64_t grain,
                                       Group& group) {
  std::vector<int64_t> own, thin;
  for (int64_t size : pieces) {
    own.push_back(span_of(size, grain, group.size(), group.rank()).length());
    if (size / grain < group.size()) thin.push_back(size);
  }
  std::vector<at::Tensor> parts = local.split_with_sizes(own, dim), joined;
  if (thin.empty()) return parts;
  for (size_t i = 0; i < pieces.size(); ++i)
    if (pieces[i] / grain < group.size()) joined.push_back(parts[i]);
  Placement placement = Placement::shard_blocks(dim, thin, grain);
  Split split(placement, std::accumulate(thin.begin(), thin.end(), int64_t{0}), group.size());
  at::Tensor part = split.padded(at::cat(joined, dim)).contiguous();
  joined = split.joined(group.all_gather(part)).split_with_sizes(thin, dim);
  for (size_t i = 0, next = 0; i < pieces.size(); ++i)
    if (pieces[i] / grain < group.size()) parts[i] = joined[next++].contiguous();
  return parts;
}

// Splits a dimension into pieces of these sizes. If the dimension is sharded with one block per
// piece, each rank holds its part of each piece. If a piece has fewer units than ranks, all ranks
// get all of it.
std::optional<CallPlan> split_into(const Call& call, int64_t dim,
                                   const std::vector<int64_t>& pieces) {
  const TensorArgument& tensor = call.tensors[0];
  int64_t n_dims = tensor.tensor.dim();
  auto n = int64_t(pieces.size());
  Factors factors;
  bool in_blocks = false;
  for (const Placement& placement : tensor.placements)
    in_blocks |= placement.is_sharded() && is_block_each(placement, dim, pieces);
  in_blocks &= !is_split_again(tensor.placements);
  Letters all = letters(n_dims), piece = all;
  if (!in_blocks) {
    factors.whole = uint64_t{1} << dim;
    piece[size_t(dim)] = -1;
  }
  factors.inputs = {all};
  factors.outputs.assign(size_t(n), piece);
  std::optional<CallPlan> plan = view_by_factors(call, std::move(factors));
  if (!in_blocks) return plan;
  Mesh::Dim over = splitting(plan->inputs[0], dim).front();
  int64_t grain = plan->inputs[0][over].grain, n_ranks = call.mesh->size(over);
  for (int64_t i = 0; i < n; ++i) {
    OutputPlan& output = plan->outputs[size_t(i)];
    bool is_thin = pieces[size_t(i)] / grain < n_ranks;
    output.placements[over] = is_thin ? Placement() : Placement::shard(dim, 0, grain);
    output.sizes[size_t(dim)] = pieces[size_t(i)];
  }
  plan->run = [dim, pieces, grain, over](const Operator&, torch::jit::Stack& stack,
                                         const Mesh& mesh) {
    stack = {c10::List<at::Tensor>(
        pieces_of_part(stack[0].toTensor(), dim, pieces, grain, mesh.group(over)))};
  };
  return plan;
}

std::optional<CallPlan> split(const Call& call) {
  const TensorArgument& tensor = call.tensors[0];
  int64_t dim = wrapped(call.integer("dim", 0), tensor.tensor.dim());
  int64_t size = tensor.sizes()[size_t(dim)];
  const c10::IValue* by_size = call.find("split_size");
  if (!by_size || !by_size->isInt()) return std::nullopt;
  int64_t length = by_size->toInt();
  std::vector<int64_t> pieces;
  for (int64_t begin = 0; begin < size || begin == 0; begin += std::max<int64_t>(length, 1))
    pieces.push_back(std::min(length, size - begin));
  return split_into(call, dim, pieces);
}

std::optional<CallPlan> split_with_sizes(const Call& call) {
  int64_t dim = wrapped(call.integer("dim", 0), call.tensors[0].tensor.dim());
  return split_into(call, dim, call.find("split_sizes")->toIntVector());
}

std::optional<CallPlan> unbind(const Call& call) {
  const TensorArgument& tensor = call.tensors[0];
  int64_t n_dims = tensor.tensor.dim();
  int64_t dim = wrapped(call.integer("dim", 0), n_dims);
  Factors factors;
  factors.inputs.push_back(all_but(n_dims, dim, factors));
  Letters output = letters(n_dims);
  output.erase(output.begin() + dim);
  factors.outputs.assign(size_t(tensor.sizes()[size_t(dim)]), output);
  return view_by_factors(call, std::move(factors));
}

}  // namespace

std::optional<std::vector<int64_t>> dimension_order(const Call& call) {
  int64_t n_dims = call.tensors[0].tensor.dim();
  if (call.op.name == "aten::permute") return call.dims("dims", n_dims);
  std::vector<int64_t> order(size_t(n_dims), 0);
  std::iota(order.begin(), order.end(), int64_t{0});
  if (call.op.name == "aten::t" || call.op.name == "aten::transpose") {
    if (n_dims < 2) return order;
    int64_t a = wrapped(call.integer("dim0", 0), n_dims);
    int64_t b = wrapped(call.integer("dim1", 1), n_dims);
    std::swap(order[size_t(a)], order[size_t(b)]);
    return order;
  }
  for (const char* name : {"aten::detach", "aten::alias", "aten::_to_copy"})
    if (call.op.name == name) return order;
  return std::nullopt;
}

const RuleTable& view_rules() {
  static const RuleTable table = [] {
    RuleTable table = {
        {"aten::detach", same},
        {"aten::alias", same},
        {"aten::lift_fresh", same},
        {"aten::_conj", same},
        {"aten::_neg_view", same},
        {"aten::view_as_complex", complex_view},
        {"aten::view_as_real", complex_view},
        {"aten::t", permute},
        {"aten::transpose", permute},
        {"aten::permute", permute},
        {"aten::unsqueeze", unsqueeze},
        {"aten::squeeze", squeeze},
        {"aten::expand", expand},
        {"aten::select", select},
        {"aten::split", split},
        {"aten::unsafe_split", split},
        {"aten::split_with_sizes", split_with_sizes},
        {"aten::unsafe_split_with_sizes", split_with_sizes},
        {"aten::unbind", unbind},
    };
    for (const char* name : {"aten::detach", "aten::alias"}) table[name].passes_through = true;
    for (const char* name : {"aten::split", "aten::split_with_sizes", "aten::unsafe_split",
                             "aten::unsafe_split_with_sizes", "aten::unbind"})
      table[name].regroups = true;
    for (const char* name : {"aten::unsafe_split", "aten::unsafe_split_with_sizes"})
      table[name].is_view = true;
    return table;
  }();
  return table;
}

}  // namespace redco::sharding
