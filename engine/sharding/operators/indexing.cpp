// Rules for operators with an index along one dimension. If that dimension is split, each rank
// reads and writes only its own elements.

#include "rules.h"

#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

namespace redco::sharding {

namespace {

// The indexed dimension of `self`.
struct Indexed {
  int64_t dim;
  int64_t size;
  Span own;         // the elements that this rank holds
  size_t argument;  // position of the index
};

bool splits_indexed(const CallPlan& plan, const Indexed& indexed) {
  return !splitting(plan.inputs[0], indexed.dim).empty();
}

Indexed indexed_by(const Call& call, const CallPlan& plan, int64_t dim) {
  int64_t size = call.tensors[0].sizes()[size_t(dim)];
  return {dim, size, own_span(size, plan.inputs[0], dim, *call.mesh),
          size_t(call.index_of("index"))};
}

at::Tensor aligned_mask(const at::Tensor& mask, int64_t dim, int64_t n_dims) {
  if (mask.dim() == n_dims) return mask;
  std::vector<int64_t> sizes(size_t(n_dims), 1);
  sizes[size_t(dim)] = mask.numel();
  return mask.reshape(sizes);
}

// Returns zeros for elements of other ranks, so that the result is a partial sum.
void read_own(const Indexed& indexed, const Operator& op, torch::jit::Stack& stack) {
  at::Tensor self = stack[0].toTensor(), index = stack[indexed.argument].toTensor();
  check_range(op, index, indexed.size);
  at::Tensor elsewhere = is_outside(index, indexed.own);
  if (indexed.own.length() == 0) {
    // A kernel needs at least one element.
    std::vector<int64_t> sizes = self.sizes().vec();
    sizes[size_t(indexed.dim)] = 1;
    stack[0] = at::zeros(sizes, self.options());
  }
  stack[indexed.argument] = (index - indexed.own.begin).masked_fill_(elsewhere, 0);
  op.handle.callBoxed(&stack);
  at::Tensor result = stack[0].toTensor();
  stack = {result.masked_fill_(aligned_mask(elsewhere, indexed.dim, result.dim()), 0)};
}

void write_own(const Indexed& indexed, const Operator& op, torch::jit::Stack& stack) {
  at::Tensor self = stack[0].toTensor(), index = stack[indexed.argument].toTensor();
  check_range(op, index, indexed.size);
  int64_t length = self.size(indexed.dim);
  stack[0] = with_one_more(self, indexed.dim);
  stack[indexed.argument] =
      (index - indexed.own.begin).masked_fill_(is_outside(index, indexed.own), length);
  op.handle.callBoxed(&stack);
  return_written(op, self, stack[0].toTensor().narrow(indexed.dim, 0, length), stack);
}

// Where the part of a rank has these elements, or -1. It consists of `pieces` of the dimension.
at::Tensor place_in_part(const at::Tensor& index, const std::vector<Span>& pieces) {
  at::Tensor place = at::full_like(index, -1);
  int64_t begin = 0;
  for (const Span& piece : pieces) {
    place = at::where(is_outside(index, piece), place, index + (begin - piece.begin));
    begin += piece.length();
  }
  return place;
}

// Writes elements in place, without a copy of the part: a cache is large, and gets few at a time.
void copy_own(const Indexed& indexed, const std::vector<Span>& pieces, const Operator& op,
              torch::jit::Stack& stack) {
  const at::Tensor self = stack[0].toTensor(), source = stack[3].toTensor();
  at::Tensor index = stack[indexed.argument].toTensor().reshape({-1});
  check_range(op, index, indexed.size);
  const int64_t dim = indexed.dim;
  stack = {self};
  if (self.size(dim) == 0 || self.is_meta()) return;
  const at::Tensor place = place_in_part(index, pieces);
  if (index.numel() == 1) {  // without reading the index: a GPU would stall
    const at::Tensor own = place.clamp_min(0), kept = self.index_select(dim, own);
    self.index_copy_(dim, own, at::where(place.lt(0), kept, source.reshape(kept.sizes())));
  } else {
    const at::Tensor own = place.ge(0).nonzero().squeeze(1);
    self.index_copy_(dim, place.index_select(0, own), source.index_select(dim, own));
  }
}

// Other dimensions share a factor if their sizes are equal; an index may be shorter.
void match_others(const Call& call, int64_t dim, std::vector<Letters>& inputs, uint64_t& whole) {
  at::IntArrayRef self = call.tensors[0].sizes();
  for (size_t i = 1; i < call.tensors.size(); ++i)
    for (size_t d = 0; d < self.size(); ++d)
      if (int64_t(d) != dim && call.tensors[i].sizes()[d] != self[d]) whole |= uint64_t{1} << d;
  inputs.assign(call.tensors.size(), letters(int64_t(self.size())));
}

// The factor of the index's own dimension: after the dimensions of `self`.
int8_t index_factor(const Call& call) { return int8_t(call.tensors[0].tensor.dim()); }

std::optional<int64_t> own_dim(const Call& call) {
  int64_t n_dims = call.tensors[0].tensor.dim();
  if (n_dims == 0 || call.tensor_of("index") < 1) return std::nullopt;
  return call.dims("dim", n_dims)->front();
}

std::optional<CallPlan> read(const Call& call, Factors factors, int64_t dim) {
  factors.linear = {1};
  refuse_blocks(call, factors, dim);
  CallPlan plan = plan_by_factors(call, factors);
  Indexed indexed = indexed_by(call, plan, dim);
  if (splits_indexed(plan, indexed))
    plan.run = [indexed](const Operator& op, torch::jit::Stack& stack, const Mesh&) {
      read_own(indexed, op, stack);
    };
  return plan;
}

std::optional<CallPlan> write(const Call& call, Factors factors, int64_t dim) {
  refuse_blocks(call, factors, dim);
  factors.outputs = {factors.inputs[0]};
  CallPlan plan = plan_by_factors(call, factors);
  at::IntArrayRef sizes = call.tensors[0].sizes();
  plan.outputs[0].sizes = Sizes(sizes.begin(), sizes.end());
  Indexed indexed = indexed_by(call, plan, dim);
  if (splits_indexed(plan, indexed))
    plan.run = [indexed](const Operator& op, torch::jit::Stack& stack, const Mesh&) {
      write_own(indexed, op, stack);
    };
  return plan;
}

std::optional<CallPlan> gather(const Call& call) {
  std::optional<int64_t> dim = own_dim(call);
  if (!dim || call.tensors.size() != 2) return std::nullopt;
  Factors factors;
  match_others(call, *dim, factors.inputs, factors.whole);
  factors.inputs[1][size_t(*dim)] = index_factor(call);
  factors.outputs = {factors.inputs[1]};
  for (size_t d = 0; d < factors.outputs[0].size(); ++d)
    if (factors.whole >> d & 1) factors.outputs[0][d] = -1;
  return read(call, factors, *dim);
}

std::optional<CallPlan> index_select(const Call& call) {
  std::optional<int64_t> dim = own_dim(call);
  if (!dim || call.tensors.size() != 2 || call.tensors[1].tensor.dim() > 1) return std::nullopt;
  Letters self = letters(call.tensors[0].tensor.dim()), result = self;
  result[size_t(*dim)] = call.tensors[1].tensor.dim() == 0 ? int8_t(-1) : index_factor(call);
  Letters index(size_t(call.tensors[1].tensor.dim()), index_factor(call));
  return read(call, {{self, index}, {result}}, *dim);
}

// Whether repeated indices add up, so that each rank can add its share of the indices.
bool adds_up(const Call& call) {
  if (call.op.name == "aten::scatter_add" || call.op.name == "aten::index_add") return true;
  const c10::IValue* reduce = call.find("reduce");
  return reduce && (reduce->toStringRef() == "add" || reduce->toStringRef() == "sum") &&
         call.boolean("include_self", true);
}

// A partial sum that is added to a whole tensor stays partial, because other sums often follow,
// such as outputs of experts. It is reduced if it is a small part of that tensor.
void add_up(const Call& call, Factors& factors) {
  constexpr int64_t most_parts = 64;
  factors.added = 1;  // self
  const int place = call.tensor_of(call.find("src") ? "src" : "source");
  if (place < 0) return;
  const TensorArgument &self = call.tensors[0], &source = call.tensors[size_t(place)];
  const bool waits = self.tensor.numel() <= most_parts * source.tensor.numel() &&
                     !self.is_written && !may_overflow(self.tensor.scalar_type());
  if (is_sum(self) || (is_sum(source) && waits))
    factors.linear = {uint64_t{1} | uint64_t{1} << place};
}

std::optional<CallPlan> scatter(const Call& call) {
  std::optional<int64_t> dim = own_dim(call);
  if (!dim || call.find("out")) return std::nullopt;
  Factors factors;
  match_others(call, *dim, factors.inputs, factors.whole);
  for (size_t i = 1; i < factors.inputs.size(); ++i)
    factors.inputs[i][size_t(*dim)] = index_factor(call);
  if (factors.inputs.size() == 3 &&
      call.tensors[1].sizes()[size_t(*dim)] != call.tensors[2].sizes()[size_t(*dim)])
    factors.whole |= uint64_t{1} << index_factor(call);
  if (adds_up(call))
    add_up(call, factors);
  else
    factors.whole |= uint64_t{1} << index_factor(call);
  return write(call, factors, *dim);
}

// Returns nullopt unless one mesh dimension splits the indexed dimension, perhaps in blocks.
std::optional<CallPlan> copied_in_place(const Call& call, Factors factors, int64_t dim) {
  factors.outputs = {factors.inputs[0]};
  CallPlan plan = plan_by_factors(call, factors);
  const MeshDims over = splitting(plan.inputs[0], dim);
  if (over.size() != 1 || plan.inputs[0][over[0]].is_on_rank()) return std::nullopt;
  at::IntArrayRef sizes = call.tensors[0].sizes();
  plan.outputs[0].sizes = Sizes(sizes.begin(), sizes.end());
  const int64_t n_ranks = call.mesh->size(over[0]), rank = call.mesh->coordinate(over[0]);
  const Indexed indexed{dim, sizes[size_t(dim)], {}, size_t(call.index_of("index"))};
  const std::vector<Span> pieces = plan.inputs[0][over[0]].pieces(indexed.size, n_ranks, rank);
  plan.run = [=](const Operator& op, torch::jit::Stack& stack, const Mesh&) {
    copy_own(indexed, pieces, op, stack);
  };
  return plan;
}

// index_add, index_copy, index_fill, index_reduce: an index of one dimension.
std::optional<CallPlan> index_write(const Call& call) {
  std::optional<int64_t> dim = own_dim(call);
  if (!dim || call.find("out")) return std::nullopt;
  Factors factors;
  for (const TensorArgument& argument : call.tensors) {
    Letters own = letters(argument.tensor.dim());
    const std::string& name = call.op.schema().arguments()[argument.argument].name();
    if (name == "index") own = Letters(size_t(argument.tensor.dim()), index_factor(call));
    if (name == "source") {
      if (argument.tensor.dim() != call.tensors[0].tensor.dim()) return std::nullopt;
      own[size_t(*dim)] = index_factor(call);
    }
    factors.inputs.push_back(own);
  }
  if (adds_up(call))
    add_up(call, factors);
  else
    factors.whole |= uint64_t{1} << index_factor(call);
  if (call.op.name == "aten::index_copy" && call.op.returned[0] >= 0)
    if (auto plan = copied_in_place(call, factors, *dim)) return plan;
  return write(call, factors, *dim);
}

}  // namespace

const RuleTable& indexing_rules() {
  static const RuleTable table = {
      {"aten::gather", gather},
      {"aten::index_select", index_select},
      {"aten::scatter", scatter},
      {"aten::scatter_add", scatter},
      {"aten::scatter_reduce", scatter},
      {"aten::index_add", index_write},
      {"aten::index_copy", index_write},
      {"aten::index_fill", index_write},
      {"aten::index_reduce", index_write},
  };
  return table;
}

}  // namespace redco::sharding
