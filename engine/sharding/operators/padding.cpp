// Rules for operators that pad, repeat or take a triangle. If they make a large tensor larger, they
// reduce partial arguments first, because fewer bytes move then. What is added behind positions
// that context shards split is a block, which they split too: a cache grows where it is.

#include "halo.h"
#include "rules.h"

#include <c10/util/accumulate.h>

namespace redco::sharding {

void keep_local_sizes(const Call& call, CallPlan& plan, const char* argument,
                      const std::vector<int64_t>& sizes) {
  OutputPlan& output = plan.outputs[0];
  output.sizes = Sizes(sizes.begin(), sizes.end());
  Sizes local = local_sizes(sizes, output.placements, *call.mesh);
  plan.arguments.emplace_back(call.index_of(argument),
                              std::vector<int64_t>(local.begin(), local.end()));
}

namespace {

// Whether terms padded with zeros cost less than a separate reduction: backward often adds up the
// gradients of several views.
bool keeps_terms_among_zeros(const TensorArgument& argument, int64_t n_elements) {
  constexpr int64_t little = 1 << 14;  // bytes
  return n_elements <= argument.tensor.numel() ||
         n_elements * int64_t(argument.tensor.element_size()) <= little;
}

// The backward of a view: writes the gradient into zeros. A cut dimension has no letter in `result`
// or in `grad`.
std::optional<CallPlan> among_zeros(const Call& call, const Letters& grad, const Letters& result) {
  if (call.tensors.size() != 1) return std::nullopt;  // out
  std::vector<int64_t> sizes = call.find("input_sizes")->toIntVector();
  Factors factors{{grad}, {result}};
  if (keeps_terms_among_zeros(call.tensors[0], c10::multiply_integers(sizes))) factors.linear = {1};
  CallPlan plan = plan_by_factors(call, factors);
  keep_local_sizes(call, plan, "input_sizes", sizes);
  return plan;
}

std::optional<CallPlan> select_backward(const Call& call) {
  int64_t n_dims = call.tensors[0].tensor.dim() + 1;
  Letters result = letters(n_dims), grad = result;
  int64_t dim = call.dims("dim", n_dims)->front();
  grad.erase(grad.begin() + dim);
  result[size_t(dim)] = -1;
  return among_zeros(call, grad, result);
}

std::optional<CallPlan> diagonal_backward(const Call& call) {
  int64_t n_dims = call.tensors[0].tensor.dim() + 1;
  int64_t a = call.dims("dim1", n_dims)->front(), b = call.dims("dim2", n_dims)->front();
  Letters result = letters(n_dims), grad;
  for (int64_t dim = 0; dim < n_dims; ++dim)
    if (dim == a || dim == b)
      result[size_t(dim)] = -1;
    else
      grad.push_back(int8_t(dim));
  grad.push_back(-1);
  return among_zeros(call, grad, result);
}

std::optional<CallPlan> unfold_backward(const Call& call) {
  int64_t n_dims = call.tensors[0].tensor.dim() - 1;
  Letters result = letters(n_dims), grad = result;
  auto dim = size_t(call.dims("dim", n_dims)->front());
  result[dim] = grad[dim] = -1;
  grad.push_back(-1);
  return among_zeros(call, grad, result);
}

// The blocks of a dimension that context shards split, after a call adds some elements behind them
// or, in backward, removes whole blocks.
struct Room {
  Mesh::Dim over;
  std::vector<int64_t> lengths;
  int64_t added = 0;  // by this rank

  static std::optional<Room> of(const Call& call, int64_t dim, int64_t added) {
    const TensorArgument& argument = call.tensors[0];
    const MeshDims splits = splitting(argument.placements, dim);
    if (splits.size() != 1 || !Mesh::has(splits[0], Mesh::context)) return std::nullopt;
    const Placement& placement = argument.placements[splits[0]];
    const int64_t size = argument.sizes()[size_t(dim)];
    if (placement.is_on_rank() || placement.grain > 1 || placement.is_prefix(size))
      return std::nullopt;
    Room room{splits[0], {}};
    if (placement.lengths)
      room.lengths = *placement.lengths;
    else
      room.lengths.assign(size_t(placement.n_blocks(size)), placement.block_length(size));
    const auto of_this_rank = [&](int64_t length) {
      return span_of(length, 1, call.mesh->size(room.over), call.mesh->coordinate(room.over))
          .length();
    };
    if (added > 0) {
      room.lengths.push_back(added);
      room.added = of_this_rank(added);
      return room;
    }
    for (; added < 0 && room.lengths.size() > 1; room.lengths.pop_back()) {
      added += room.lengths.back();
      room.added -= of_this_rank(room.lengths.back());
    }
    return added == 0 ? std::optional(room) : std::nullopt;
  }
};

// A dimension that context shards split in even parts, to which a call adds elements at its
// beginning, and may be at its end, or removes them in backward: neighbours exchange what shifts.
struct Shift {
  Mesh::Dim over;
  int64_t before, size, padded_size;
  HeldAndNeeded ranges;  // counted in the result

  static std::optional<Shift> of(const Call& call, int64_t dim, int64_t before, int64_t behind) {
    const TensorArgument& argument = call.tensors[0];
    const MeshDims splits = splitting(argument.placements, dim);
    if (splits.size() != 1 || !Mesh::has(splits[0], Mesh::context) ||
        argument.placements[splits[0]] != Placement::shard(dim))
      return std::nullopt;
    const int64_t size = argument.sizes()[size_t(dim)], n_ranks = call.mesh->size(splits[0]);
    Shift shift{splits[0], before, size, before + size + behind, {}};
    if (shift.padded_size < n_ranks) return std::nullopt;
    shift.ranges = {parts_of_ranks(size, n_ranks, before),
                    parts_of_ranks(shift.padded_size, n_ranks)};
    return shift.ranges.sends_few() ? std::optional(shift) : std::nullopt;
  }

  at::Tensor padded(const at::Tensor& part, int64_t dim, const at::Scalar& value,
                    const Mesh& mesh) const {
    at::Tensor result = exchanged_along(part, dim, ranges, mesh.group(over));
    const Span own = ranges.needed[size_t(mesh.coordinate(over))];
    for (const Span& added : {Span{0, before}, Span{before + size, padded_size}})
      if (const Span here = common(own, added); here.length() > 0)
        result.narrow(dim, here.begin - own.begin, here.length()).fill_(value);
    return result;
  }
};

std::optional<CallPlan> pad(const Call& call) {
  if (call.tensors.size() != 1) return std::nullopt;  // out
  const TensorArgument& argument = call.tensors[0];
  std::vector<int64_t> pad = call.find("pad")->toIntVector();
  Sizes sizes(argument.sizes());
  Letters all = letters(argument.tensor.dim());
  std::vector<std::pair<size_t, Room>> rooms;    // by dimension
  std::vector<std::pair<size_t, Shift>> shifts;  // the same
  for (size_t i = 0; i + 1 < pad.size(); i += 2) {
    const size_t dim = all.size() - 1 - i / 2;  // from the last dimension backwards
    sizes[dim] += pad[i] + pad[i + 1];
    if (pad[i] == 0 && pad[i + 1] == 0) continue;
    const auto room = pad[i] == 0 ? Room::of(call, int64_t(dim), pad[i + 1]) : std::nullopt;
    const auto shift = room ? std::nullopt : Shift::of(call, int64_t(dim), pad[i], pad[i + 1]);
    if (room) rooms.emplace_back(dim, *room);
    if (shift) shifts.emplace_back(dim, *shift);
    if (!room && !shift) all[dim] = -1;
  }
  Factors factors{{all}, {all}};
  const c10::IValue* value = call.find("value");
  if (value && value->isScalar() && value->toScalar().equal(0) &&
      keeps_terms_among_zeros(argument, c10::multiply_integers(sizes)))
    factors.linear = {1};
  CallPlan plan = plan_by_factors(call, factors);
  for (const auto& [dim, room] : rooms) {
    OutputPlan& output = plan.outputs[0];
    output.sizes[dim] = sizes[dim];
    output.placements[room.over] = Placement::shard_blocks(int64_t(dim), room.lengths);
    pad[2 * (all.size() - 1 - dim) + 1] = room.added;
  }
  for (const auto& [dim, shift] : shifts) {
    plan.outputs[0].sizes[dim] = sizes[dim];
    pad[2 * (all.size() - 1 - dim)] = pad[2 * (all.size() - 1 - dim) + 1] = 0;
  }
  if (!rooms.empty() || !shifts.empty()) plan.arguments.emplace_back(call.index_of("pad"), pad);
  if (shifts.empty()) return plan;
  plan.run = [shifts, filler = value && value->isScalar() ? value->toScalar() : at::Scalar(0)](
                 const Operator& op, torch::jit::Stack& stack, const Mesh& mesh) {
    at::Tensor part = stack[0].toTensor();
    for (const auto& [dim, shift] : shifts) part = shift.padded(part, int64_t(dim), filler, mesh);
    stack[0] = part;
    op.handle.callBoxed(&stack);
  };
  return plan;
}

std::optional<CallPlan> repeat(const Call& call) {
  if (call.tensors.size() != 1) return std::nullopt;  // out
  std::vector<int64_t> repeats = call.find("repeats")->toIntVector();
  Letters own = letters(call.tensors[0].tensor.dim());
  Letters result(repeats.size() - own.size(), int8_t(-1));
  for (size_t dim = 0; dim < own.size(); ++dim) {
    if (repeats[result.size()] != 1) own[dim] = -1;
    result.push_back(own[dim]);
  }
  return plan_by_factors(call, {{own}, {result}});
}

// Moves the diagonal of a part by the part's first row and column.
std::optional<CallPlan> triangle(const Call& call) {
  if (call.find("out")) return std::nullopt;
  const TensorArgument& argument = call.tensors[0];
  int64_t n_dims = argument.tensor.dim();
  Letters all = letters(n_dims);
  Factors factors{{all}, {all}};
  for (int64_t dim : {n_dims - 2, n_dims - 1}) refuse_blocks(call, factors, dim);
  factors.linear = {1};
  CallPlan plan = plan_by_factors(call, factors);
  auto begin = [&](int64_t dim) {
    return own_span(argument.sizes()[size_t(dim)], plan.inputs[0], dim, *call.mesh).begin;
  };
  plan.arguments.emplace_back(call.index_of("diagonal"),
                              call.integer("diagonal", 0) + begin(n_dims - 2) - begin(n_dims - 1));
  return plan;
}

std::optional<CallPlan> diag_embed(const Call& call) {
  if (call.find("out")) return std::nullopt;
  int64_t n_dims = call.tensors[0].tensor.dim();
  int64_t a = call.dims("dim1", n_dims + 1)->front(), b = call.dims("dim2", n_dims + 1)->front();
  Letters own = letters(n_dims), result;
  own.back() = -1;
  int8_t next = 0;
  for (int64_t dim = 0; dim <= n_dims; ++dim)
    result.push_back(dim == a || dim == b ? int8_t(-1) : next++);
  return plan_by_factors(call, {{own}, {result}});
}

}  // namespace

const RuleTable& padding_rules() {
  static const RuleTable table = [] {
    RuleTable table = {
        {"aten::select_backward", select_backward},
        {"aten::diagonal_backward", diagonal_backward},
        {"aten::unfold_backward", unfold_backward},
        {"aten::constant_pad_nd", pad},
        {"aten::repeat", repeat},
        {"aten::tril", triangle},
        {"aten::triu", triangle},
        {"aten::diag_embed", diag_embed},
    };
    table["aten::constant_pad_nd"].keys_floats = true;  // whether it pads with zeros
    return table;
  }();
  return table;
}

}  // namespace redco::sharding
