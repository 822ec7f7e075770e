// Rules for strided views: diagonal, unfold and as_strided.

#include "rules.h"

#include <redco/error.h>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace redco::sharding {

namespace {

std::optional<CallPlan> diagonal(const Call& call) {
  int64_t n_dims = call.tensors[0].tensor.dim();
  int64_t a = call.dims("dim1", n_dims)->front(), b = call.dims("dim2", n_dims)->front();
  Letters own = letters(n_dims), result;
  for (int64_t dim = 0; dim < n_dims; ++dim)
    if (dim == a || dim == b)
      own[size_t(dim)] = -1;
    else
      result.push_back(int8_t(dim));
  result.push_back(-1);
  return view_by_factors(call, {{own}, {result}});
}

std::optional<CallPlan> unfold(const Call& call) {
  int64_t n_dims = call.tensors[0].tensor.dim();
  if (n_dims == 0) return std::nullopt;
  Letters own = letters(n_dims);
  own[size_t(call.dims("dimension", n_dims)->front())] = -1;
  Letters result = own;
  result.push_back(-1);
  return view_by_factors(call, {{own}, {result}});
}

// How a result of as_strided walks over a tensor. In every dimension of the tensor, index i of the
// result is at begin + sum of i[k] * steps[k].
struct Walk {
  std::vector<int64_t> sizes;               // of the result
  std::vector<int64_t> begin;               // by dimension of the tensor
  std::vector<std::vector<int64_t>> steps;  // by dimension of the result and of the tensor
};

// Splits a distance in memory into steps along each dimension; nullopt if there is a remainder.
std::optional<std::vector<int64_t>> steps_of(const Geometry& tensor, const Sizes& order,
                                             int64_t distance) {
  std::vector<int64_t> steps(order.size(), 0);
  for (int64_t dim : order) {
    int64_t stride = tensor.strides[size_t(dim)];
    if (stride == 0 || tensor.sizes[size_t(dim)] == 1) continue;
    steps[size_t(dim)] = distance / stride;
    distance %= stride;
  }
  return distance == 0 ? std::optional(steps) : std::nullopt;
}

// `offset`: from the tensor's first element. Nullopt if the result's strides cross from one
// dimension of the tensor into the next.
std::optional<Walk> walk_of(const Geometry& tensor, at::IntArrayRef sizes, at::IntArrayRef strides,
                            int64_t offset) {
  Sizes order = memory_order(tensor.strides);
  auto begin = steps_of(tensor, order, offset);
  if (offset < 0 || !begin) return std::nullopt;
  Walk walk{sizes.vec(), *begin, {}};
  std::vector<int64_t> last = walk.begin;
  for (size_t i = 0; i < sizes.size(); ++i) {
    auto steps = steps_of(tensor, order, sizes[i] == 1 ? 0 : strides[i]);
    if (!steps) return std::nullopt;
    // Expanded dimensions stay expanded.
    for (size_t dim = 0; dim < order.size() && strides[i] == 0 && sizes[i] > 1; ++dim)
      if (tensor.strides[dim] == 0 && tensor.sizes[dim] == sizes[i] && last[dim] == 0) {
        (*steps)[dim] = 1;
        break;
      }
    for (size_t dim = 0; dim < order.size(); ++dim) last[dim] += (sizes[i] - 1) * (*steps)[dim];
    walk.steps.push_back(*std::move(steps));
  }
  // A dimension of size 1 may be split too, so map it to a dimension of size 1 of the result.
  for (size_t dim = 0; dim < order.size(); ++dim)
    for (size_t i = 0; i < sizes.size() && tensor.sizes[dim] == 1; ++i)
      if (sizes[i] == 1 && strides[i] == tensor.strides[dim] &&
          std::ranges::all_of(walk.steps[i], [](int64_t step) { return step == 0; })) {
        walk.steps[i][dim] = 1;
        break;
      }
  for (size_t dim = 0; dim < order.size(); ++dim)
    if (last[dim] >= tensor.sizes[dim]) return std::nullopt;
  return walk;
}

at::Tensor walked(const at::Tensor& local, const Walk& walk, at::IntArrayRef sizes, bool in_place) {
  std::vector<int64_t> strides;
  for (const auto& steps : walk.steps) {
    int64_t stride = 0;
    for (size_t dim = 0; dim < steps.size(); ++dim)
      stride += steps[dim] * local.stride(int64_t(dim));
    strides.push_back(stride);
  }
  int64_t offset = local.storage_offset();
  for (size_t dim = 0; dim < walk.begin.size() && local.numel() > 0; ++dim)
    offset += walk.begin[dim] * local.stride(int64_t(dim));
  return in_place ? local.as_strided_(sizes, strides, offset)
                  : local.as_strided(sizes, strides, offset);
}

// The dimension of the result that walks over all of a split dimension of the tensor, in steps of
// `step` elements. Nullopt if there is none.
struct Place {
  size_t dim;
  int64_t step;
};

std::optional<Place> place_of(const Walk& walk, at::IntArrayRef sizes, size_t dim) {
  std::optional<Place> place;
  for (size_t i = 0; i < walk.steps.size(); ++i)
    if (walk.steps[i][dim] > 0 && (walk.sizes[i] > 1 || sizes[dim] == 1) &&
        (!place || walk.steps[i][dim] > place->step))
      place = Place{i, walk.steps[i][dim]};
  if (!place || place->step * walk.sizes[place->dim] != sizes[dim]) return std::nullopt;
  // The other dimensions must stay within one step, and this dimension must not walk along others.
  int64_t within = walk.begin[dim];
  for (size_t i = 0; i < walk.steps.size(); ++i)
    if (i != place->dim) within += (walk.sizes[i] - 1) * walk.steps[i][dim];
  for (size_t other = 0; other < walk.begin.size(); ++other)
    if (other != dim && walk.steps[place->dim][other] != 0) return std::nullopt;
  return within < place->step ? place : std::nullopt;
}

// Returns the placement of the result that keeps each rank's elements on that rank.
std::optional<Placement> walked_placement(const Placement& placement, int64_t size,
                                          const Place& place, int64_t n_ranks) {
  if (placement.lengths) return std::nullopt;
  int64_t step = place.step, block = placement.block_length(size);
  if (block % step != 0) return std::nullopt;
  int64_t grain = placement.grain % step == 0 ? placement.grain / step : 1;
  for (int64_t rank = 0; rank < n_ranks; ++rank) {
    Span before = span_of(block, placement.grain, n_ranks, rank);
    Span after = span_of(block / step, grain, n_ranks, rank);
    if (before.begin != after.begin * step || before.end != after.end * step) return std::nullopt;
  }
  return Placement::shard(int64_t(place.dim), placement.block / step, grain);
}

// The placements of the tensor and of the result for a walk on local tensors.
std::pair<Placements, Placements> walked_placements(const Call& call, const Walk& walk) {
  const TensorArgument& tensor = call.tensors[0];
  Placements input = tensor.placements, output = tensor.placements;
  for (Mesh::Dim i : Mesh::dims) {
    if (!input[i].is_sharded()) continue;
    auto dim = size_t(input[i].dim);
    std::optional<Place> place = place_of(walk, tensor.sizes(), dim);
    std::optional<Placement> placement;
    if (place && (place->step == 1 || !is_split_again(tensor.placements)))
      placement = walked_placement(input[i], tensor.sizes()[dim], *place, call.mesh->size(i));
    if (!placement) input[i] = {};
    output[i] = placement.value_or(Placement());
  }
  return {input, output};
}

struct Arguments {
  std::vector<int64_t> sizes, strides;
  int64_t offset;  // from the tensor's first element
};

Arguments arguments_of(const Call& call) {
  int64_t begin = call.tensors[0].tensor.storage_offset();
  return {call.find("size")->toIntVector(), call.find("stride")->toIntVector(),
          call.integer("storage_offset", begin) - begin};
}

// Copies a whole tensor into memory of the logical geometry.
at::Tensor in_logical_memory(const at::Tensor& whole, const Geometry& geometry) {
  int64_t extent = 1;
  for (size_t dim = 0; dim < geometry.sizes.size(); ++dim)
    extent += (geometry.sizes[dim] - 1) * geometry.strides[dim];
  at::Tensor memory = at::zeros({extent}, whole.options());
  memory.as_strided(geometry.sizes, geometry.strides, 0).copy_(whole);
  return memory;
}

void check_reach(const Call& call, const Geometry& geometry, const Arguments& arguments) {
  at::Tensor held = in_logical_memory(at::ones(geometry.sizes, at::kBool), geometry);
  int64_t last = arguments.offset;
  for (size_t i = 0; i < arguments.sizes.size(); ++i)
    last += (arguments.sizes[i] - 1) * arguments.strides[i];
  bool is_empty = std::ranges::count(arguments.sizes, 0) > 0;
  require(is_empty || (arguments.offset >= 0 && last < held.numel() &&
                       held.as_strided(arguments.sizes, arguments.strides, arguments.offset)
                           .all()
                           .item<bool>()),
          call.op.name, ": size ", at::IntArrayRef(arguments.sizes), " with stride ",
          at::IntArrayRef(arguments.strides), " reaches memory outside of the elements of this ",
          "sharded tensor of shape ", call.tensors[0].sizes(),
          ", which no process has. Take the view from the tensor that has them");
}

// Gathers the tensor and takes the view in memory with the layout of a single process.
CallPlan gathered_as_strided(const Call& call, const Arguments& arguments) {
  CallPlan plan = gathered_plan(call);
  Geometry geometry = geometry_of(call.tensors[0].tensor);
  check_reach(call, geometry, arguments);
  plan.run = [=](const Operator& op, torch::jit::Stack& stack, const Mesh&) {
    at::Tensor memory = stack[0].toTensor();
    bool has_same_layout = memory.strides() == at::IntArrayRef(geometry.strides) &&
                           op.name != "aten::as_strided_scatter";
    if (!has_same_layout) memory = in_logical_memory(memory, geometry);
    at::Tensor view = memory.as_strided(arguments.sizes, arguments.strides,
                                        memory.storage_offset() + arguments.offset);
    if (op.name == "aten::as_strided_scatter") {
      view.copy_(stack[1].toTensor());
      view = memory.as_strided(geometry.sizes, geometry.strides, 0);
    } else if (op.is_inplace_view) {
      stack[0].toTensor().set_(view);
      view = stack[0].toTensor();
    }
    stack = {view};
  };
  return plan;
}

// The strides and the offset are those of the logical tensor.
std::optional<CallPlan> as_strided(const Call& call) {
  if (call.find("out") || call.tensors[0].tensor.numel() == 0) return std::nullopt;
  Arguments arguments = arguments_of(call);
  std::optional<Walk> walk = walk_of(geometry_of(call.tensors[0].tensor), arguments.sizes,
                                     arguments.strides, arguments.offset);
  if (!walk) return gathered_as_strided(call, arguments);
  bool is_scatter = call.op.name == "aten::as_strided_scatter";
  auto [input, output] = walked_placements(call, *walk);
  if (is_scatter)
    for (Mesh::Dim i : Mesh::dims)
      if (input[i].is_partial()) input[i] = output[i] = {};
  CallPlan plan;
  plan.inputs = {input};
  if (is_scatter) plan.inputs.push_back(output);
  Sizes sizes(walk->sizes.begin(), walk->sizes.end());
  OutputPlan result{output, sizes, std::nullopt};
  if (is_scatter) result = {input, Sizes(call.tensors[0].sizes()), std::nullopt};
  plan.outputs.push_back(result);
  plan.run = [walk = *walk, is_scatter, local_sizes = local_sizes(sizes, output, *call.mesh)](
                 const Operator& op, torch::jit::Stack& stack, const Mesh&) {
    at::Tensor local = stack[0].toTensor();
    if (is_scatter) {
      local = local.clone();
      walked(local, walk, local_sizes, false).copy_(stack[1].toTensor());
    } else {
      local = walked(local, walk, local_sizes, op.is_inplace_view);
    }
    stack = {op.is_view || op.is_inplace_view || is_scatter ? local : local.clone()};
  };
  return plan;
}

}  // namespace

bool takes_strides(const Operator& op) {
  return op.name.starts_with("aten::as_strided") || op.name.starts_with("aten::_reshape_alias");
}

const RuleTable& strided_view_rules() {
  static const RuleTable table = {
      {"aten::diagonal", diagonal},
      {"aten::unfold", unfold},
      {"aten::as_strided", as_strided},
      {"aten::as_strided_copy", as_strided},
      {"aten::as_strided_scatter", as_strided},
  };
  return table;
}

}  // namespace redco::sharding
