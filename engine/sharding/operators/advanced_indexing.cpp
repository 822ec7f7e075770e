// Rules for indexing with tensors, x[a, :, b]. If an indexed dimension is split, each rank reads
// and writes only its own elements.

#include "rules.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/where.h>

namespace redco::sharding {

namespace {

struct Index {
  int64_t dim;     // of the tensor
  size_t element;  // in the list of indices
  size_t tensor;   // among the call's tensors
};

// Factors: the tensor's dimensions, then the broadcast dimensions of the indices.
struct Indexing {
  std::vector<Index> indices;
  std::vector<int64_t> broadcast;  // sizes
  int64_t n_dims = 0;              // of the tensor
  int64_t front = 0;               // position of the broadcast dimensions in the result
  Letters result;

  int64_t n_behind() const { return n_dims - int64_t(indices.size()) - front; }
};

std::optional<Indexing> indexing_of(const Call& call) {
  Indexing indexing;
  indexing.n_dims = call.tensors[0].tensor.dim();
  auto list = size_t(call.index_of("indices"));
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const TensorArgument& argument = call.tensors[i];
    if (argument.argument != list) continue;
    // The number of elements that a mask selects depends on all of it.
    if (!at::isIntegralType(argument.tensor.scalar_type(), false) ||
        argument.tensor.scalar_type() == at::kByte)
      return std::nullopt;
    indexing.indices.push_back({argument.element, size_t(argument.element), i});
    indexing.broadcast = at::infer_size(indexing.broadcast, argument.sizes());
  }
  if (indexing.indices.empty()) return std::nullopt;
  int64_t first = indexing.indices.front().dim, last = indexing.indices.back().dim;
  bool are_adjacent = last - first + 1 == int64_t(indexing.indices.size());
  indexing.front = are_adjacent ? first : 0;
  Letters kept = letters(indexing.n_dims);
  for (size_t i = indexing.indices.size(); i-- > 0;)
    kept.erase(kept.begin() + indexing.indices[i].dim);
  Letters broadcast = letters(int64_t(indexing.broadcast.size()), int(indexing.n_dims));
  indexing.result = kept;
  indexing.result.insert(indexing.result.begin() + indexing.front, broadcast.begin(),
                         broadcast.end());
  return indexing;
}

// Aligns letters at the right. A dimension of size 1 that is broadcast has no factor.
Letters letters_at_right(at::IntArrayRef sizes, at::IntArrayRef whole, const Letters& all) {
  Letters own;
  size_t skipped = whole.size() - sizes.size();
  for (size_t i = 0; i < sizes.size(); ++i)
    own.push_back(sizes[i] == whole[skipped + i] ? all[skipped + i] : int8_t(-1));
  return own;
}

Factors indexing_factors(const Call& call, const Indexing& indexing) {
  Factors factors;
  factors.inputs.assign(call.tensors.size(), {});
  factors.inputs[0] = letters(indexing.n_dims);
  for (const Index& index : indexing.indices) {
    factors.inputs[index.tensor] =
        letters_at_right(call.tensors[index.tensor].sizes(), indexing.broadcast,
                         letters(int64_t(indexing.broadcast.size()), int(indexing.n_dims)));
  }
  return factors;
}

CallPlan plan_of(const Call& call, const Indexing& indexing, Factors factors) {
  for (const Index& index : indexing.indices) refuse_blocks(call, factors, index.dim);
  return plan_by_factors(call, factors);
}

// An index into a split dimension.
struct SplitIndex {
  int64_t dim;
  size_t element;
  int64_t size;  // of the whole dimension
  Span own;
};

std::vector<SplitIndex> split_indices(const Call& call, const Indexing& indexing,
                                      const CallPlan& plan) {
  std::vector<SplitIndex> found;
  for (const Index& index : indexing.indices) {
    if (splitting(plan.inputs[0], index.dim).empty()) continue;
    int64_t size = call.tensors[0].sizes()[size_t(index.dim)];
    found.push_back(
        {index.dim, index.element, size, own_span(size, plan.inputs[0], index.dim, *call.mesh)});
  }
  return found;
}

// Converts an index to local positions, with `missing` for elements of other ranks. Returns a mask
// of these.
at::Tensor localize(const Operator& op, torch::jit::Stack& stack, const SplitIndex& split,
                    int64_t missing) {
  auto list = stack[1].toList().copy();
  at::Tensor index = list.get(split.element).toTensor();
  index = at::where(index.lt(0), index + split.size, index);
  check_range(op, index, split.size);
  at::Tensor elsewhere = is_outside(index, split.own);
  list.set(split.element, (index - split.own.begin).masked_fill_(elsewhere, missing));
  stack[1] = list;
  return elsewhere;
}

std::optional<CallPlan> index(const Call& call) {
  std::optional<Indexing> indexing = indexing_of(call);
  if (!indexing || call.find("out")) return std::nullopt;
  Factors factors = indexing_factors(call, *indexing);
  factors.outputs = {indexing->result};
  factors.linear = {1};
  CallPlan plan = plan_of(call, *indexing, factors);
  std::vector<SplitIndex> splits = split_indices(call, *indexing, plan);
  if (splits.empty()) return plan;
  plan.run = [splits, n_behind = indexing->n_behind()](const Operator& op, torch::jit::Stack& stack,
                                                       const Mesh&) {
    at::Tensor elsewhere;
    for (const SplitIndex& split : splits) {
      if (split.own.length() == 0) stack[0] = with_one_more(stack[0].toTensor(), split.dim);
      at::Tensor here = localize(op, stack, split, 0);
      elsewhere = elsewhere.defined() ? elsewhere.logical_or(here) : here;
    }
    op.handle.callBoxed(&stack);
    for (int64_t i = 0; i < n_behind; ++i) elsewhere = elsewhere.unsqueeze(-1);
    stack = {stack[0].toTensor().masked_fill_(elsewhere, 0)};
  };
  return plan;
}

// Redirects writes to other ranks' elements to one extra element, which is then dropped.
void put_own(const std::vector<SplitIndex>& splits, const Operator& op, torch::jit::Stack& stack) {
  at::Tensor self = stack[0].toTensor(), padded = self;
  for (const SplitIndex& split : splits) {
    padded = with_one_more(padded, split.dim);
    localize(op, stack, split, split.own.length());
  }
  stack[0] = padded;
  op.handle.callBoxed(&stack);
  at::Tensor result = stack[0].toTensor();
  for (const SplitIndex& split : splits) result = result.narrow(split.dim, 0, split.own.length());
  return_written(op, self, result, stack);
}

std::optional<CallPlan> index_put(const Call& call) {
  std::optional<Indexing> indexing = indexing_of(call);
  int values = call.tensor_of("values");
  if (!indexing || values < 0 || call.find("out")) return std::nullopt;
  Factors factors = indexing_factors(call, *indexing);
  std::vector<int64_t> result_sizes;
  for (int8_t letter : indexing->result)
    result_sizes.push_back(letter < indexing->n_dims
                               ? call.tensors[0].sizes()[size_t(letter)]
                               : indexing->broadcast[size_t(letter - indexing->n_dims)]);
  at::IntArrayRef sizes = call.tensors[size_t(values)].sizes();
  if (sizes.size() > result_sizes.size()) return std::nullopt;
  factors.inputs[size_t(values)] = letters_at_right(sizes, result_sizes, indexing->result);
  factors.outputs = {factors.inputs[0]};
  if (call.boolean("accumulate", false)) {
    factors.added = 1;
    if (is_sum(call.tensors[0])) factors.linear = {uint64_t{1} | uint64_t{1} << values};
  } else {
    for (size_t i = 0; i < indexing->broadcast.size(); ++i)
      factors.whole |= uint64_t{1} << (size_t(indexing->n_dims) + i);
  }
  CallPlan plan = plan_of(call, *indexing, factors);
  std::vector<SplitIndex> splits = split_indices(call, *indexing, plan);
  if (splits.empty()) return plan;
  plan.run = [splits](const Operator& op, torch::jit::Stack& stack, const Mesh&) {
    put_own(splits, op, stack);
  };
  return plan;
}

// A mask selects as many elements as it has true values.
bool has_no_mask(const Call& call) {
  return std::ranges::none_of(call.tensors, [](const TensorArgument& argument) {
    const at::ScalarType type = argument.tensor.scalar_type();
    return argument.argument > 0 && (type == at::kBool || type == at::kByte);
  });
}

}  // namespace

const RuleTable& advanced_indexing_rules() {
  OperatorFacts selection = index;
  selection.has_known_shape = has_no_mask;
  static const RuleTable table = {
      {"aten::index", selection},
      {"aten::_unsafe_index", selection},
      {"aten::index_put", index_put},
      {"aten::_index_put_impl", index_put},
      {"aten::_unsafe_index_put", index_put},
  };
  return table;
}

}  // namespace redco::sharding
