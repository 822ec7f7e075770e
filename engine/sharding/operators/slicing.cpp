// Rules for slices, and for glu, which takes two slices. A slice of whole blocks of a split
// dimension keeps its parts. So does a slice with a step, if ranks split the dimension between
// steps. If context shards split positions, a slice shifts some of them to a neighbour, and
// neighbours exchange these; the first positions of blocks, as of a cache that has room, stay where
// they are.

#include "../tensor/split.h"
#include "halo.h"
#include "rules.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <unordered_map>

namespace redco::sharding {

namespace {

// The elements [start, end) of a dimension of `size`, each `step` after the one before.
struct Range {
  int64_t size, start, end, step;

  int64_t length() const { return (end - start + step - 1) / step; }
  bool is_all() const { return start == 0 && end == size && step == 1; }
};

Range range_of(const Call& call, int64_t size) {
  auto position = [&](const char* name, int64_t otherwise) {
    int64_t value = call.integer(name, otherwise);
    return std::clamp<int64_t>(value < 0 ? value + size : value, 0, size);
  };
  Range range{size, position("start", 0), position("end", size), call.integer("step", 1)};
  range.end = std::max(range.start, range.end);
  return range;
}

// The blocks of a dimension: each is split between units of `grain`.
struct Blocks {
  std::vector<int64_t> lengths;
  int64_t grain;

  bool operator==(const Blocks&) const = default;
  Placement on(int64_t dim) const { return Placement::shard_blocks(dim, lengths, grain); }
};

Blocks blocks_of(const Placement& placement, int64_t size) {
  if (placement.lengths) return {*placement.lengths, placement.grain};
  auto n = size_t(placement.n_blocks(size));
  return {std::vector<int64_t>(n, placement.block_length(size)), placement.grain};
}

// Whether all ranks hold the same elements of both lists of blocks, if the blocks of `a` are
// `times` as long.
bool are_cut_alike(const Blocks& a, const Blocks& b, int64_t times, int64_t n_ranks) {
  if (a.lengths.size() != b.lengths.size()) return false;
  for (size_t i = 0; i < a.lengths.size(); ++i)
    for (int64_t rank = 0; rank <= n_ranks; ++rank)
      if (span_of(a.lengths[i], a.grain, n_ranks, rank).begin !=
          span_of(b.lengths[i], b.grain, n_ranks, rank).begin * times)
        return false;
  return true;
}

// Returns the blocks that a range consists of, [first, last). Empty if the range cuts through
// blocks.
Span whole_blocks(const Blocks& blocks, const Range& range) {
  auto index_of_cut = [&](int64_t position) {
    int64_t at = 0, index = 0;
    while (at < position) at += blocks.lengths[size_t(index++)];
    return at == position ? index : -1;
  };
  Span run{index_of_cut(range.start), index_of_cut(range.end)};
  return run.begin >= 0 && run.end > run.begin ? run : Span();
}

Blocks some_of(const Blocks& blocks, const Span& run) {
  return {{blocks.lengths.begin() + run.begin, blocks.lengths.begin() + run.end}, blocks.grain};
}

// Returns the blocks that a slice with a step leaves. Nullopt if a rank would get elements that it
// does not hold.
std::optional<Blocks> thinned(const Blocks& blocks, const Range& range, int64_t n_ranks) {
  if (range.length() * range.step != range.size || range.start >= range.step) return std::nullopt;
  Blocks result{blocks.lengths, 1};
  for (int64_t& length : result.lengths) {
    if (length % range.step != 0) return std::nullopt;
    length /= range.step;
  }
  for (int64_t grain : {int64_t{1}, blocks.grain / range.step}) {
    result.grain = std::max<int64_t>(grain, 1);
    if (are_cut_alike(blocks, result, range.step, n_ranks)) return result;
  }
  return std::nullopt;
}

// Returns where a rank's part of block `first` begins in the rank's whole part.
int64_t begin_in_part(const Blocks& blocks, int64_t first, int64_t n_ranks, int64_t rank) {
  int64_t begin = 0;
  for (int64_t i = 0; i < first; ++i)
    begin += span_of(blocks.lengths[size_t(i)], blocks.grain, n_ranks, rank).length();
  return begin;
}

// Remembers, by the size of a dimension, the blocks of dimensions that a differentiable slice took
// blocks from. The gradient of the slice gets these blocks too, so that the gradients of all slices
// add up in place: LibTorch tells backward only the size. A wrong choice moves more bytes but
// changes no number. Each mesh remembers its own blocks, because all its processes must choose
// alike.
class SlicedBlocks {
 public:
  void add(int64_t size, const Blocks& blocks) {
    std::lock_guard lock(mutex_);
    std::vector<Blocks>& known = blocks_[size];
    if (std::ranges::find(known, blocks) == known.end()) known.push_back(blocks);
  }

  // Returns the first remembered blocks for which `own` are the blocks of `range`.
  std::optional<Blocks> find(const Range& range, const Blocks& own, int64_t n_ranks) {
    std::lock_guard lock(mutex_);
    for (const Blocks& blocks : blocks_[range.size]) {
      Span run = whole_blocks(blocks, range);
      if (run.length() > 0 && are_cut_alike(own, some_of(blocks, run), 1, n_ranks)) return blocks;
    }
    return std::nullopt;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<int64_t, std::vector<Blocks>> blocks_;
};

SlicedBlocks& sliced_blocks(const Mesh& mesh) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  std::shared_ptr<void>& remembered = mesh.remembered();
  if (!remembered) remembered = std::make_shared<SlicedBlocks>();
  return *static_cast<SlicedBlocks*>(remembered.get());
}

// Returns the only mesh dimension that splits a dimension of the tensor; nullopt if there is not
// exactly one.
std::optional<Mesh::Dim> only_splitting(const Placements& placements, int64_t dim) {
  MeshDims over = splitting(placements, dim);
  return over.size() == 1 ? std::optional(over[0]) : std::nullopt;
}

// A range of positions and the whole that it is part of, both split over the ranks.
struct ShiftedRange {
  HeldAndNeeded ranges;  // held: parts of the whole; needed: parts of the range

  ShiftedRange(const Range& range, int64_t n_ranks)
      : ranges{parts_of_ranks(range.size, n_ranks),
               parts_of_ranks(range.length(), n_ranks, range.start)} {}

  // Whether an exchange is cheaper than joining the parts.
  bool is_near() const {
    const auto n = int64_t(ranges.held.size());
    return ranges.longest_piece() * n * 2 <= ranges.held.front().length();
  }
};

// Whether a range is taken from `dim`, which context shards split in one block.
bool is_shifted(const Placements& placements, int64_t dim, const Range& range) {
  const std::optional<Mesh::Dim> over = only_splitting(placements, dim);
  return over && Mesh::has(*over, Mesh::context) && range.step == 1 &&
         placements[*over] == Placement::shard(dim);
}

// Whether a range is the first elements of `dim`, which context shards split in blocks.
bool is_prefix_of_blocks(const Placement& placement, Mesh::Dim over, const Range& range) {
  return Mesh::has(over, Mesh::context) && range.start == 0 && range.step == 1 &&
         range.length() > 0 && placement.is_in_blocks() && !placement.is_on_rank();
}

std::optional<CallPlan> slice_by(const Call& call, int64_t dim, bool keeps_split) {
  int64_t n_dims = call.tensors[0].tensor.dim();
  Letters own = letters(n_dims), result = own;
  Factors factors{{own}, {result}};
  if (!keeps_split) {
    factors.whole = uint64_t{1} << dim;
    factors.outputs[0][size_t(dim)] = -1;
  }
  return view_by_factors(call, std::move(factors));
}

std::optional<CallPlan> slice(const Call& call) {
  const TensorArgument& argument = call.tensors[0];
  int64_t dim = call.dims("dim", argument.tensor.dim())->front();
  const Range range = range_of(call, argument.sizes()[size_t(dim)]);
  if (range.is_all()) {
    std::optional<CallPlan> plan = slice_by(call, dim, true);
    plan->arguments = {{size_t(call.index_of("start")), c10::IValue()},
                       {size_t(call.index_of("end")), c10::IValue()}};
    return plan;
  }
  std::optional<Mesh::Dim> over = only_splitting(argument.placements, dim);
  if (!over) return slice_by(call, dim, false);
  const Placement& placement = argument.placements[*over];
  const Blocks blocks = blocks_of(placement, range.size);
  const int64_t n_ranks = call.mesh->size(*over), rank = call.mesh->coordinate(*over);
  const Span run = range.step == 1 ? whole_blocks(blocks, range) : Span();
  const std::optional<Blocks> kept =
      range.step == 1 ? run.length() == 0 ? std::nullopt : std::optional(some_of(blocks, run))
      : placement.is_prefix(range.size) ? std::nullopt
                                        : thinned(blocks, range, n_ranks);
  if (!kept && is_prefix_of_blocks(placement, *over, range)) {
    std::optional<CallPlan> plan = slice_by(call, dim, true);
    OutputPlan& output = plan->outputs[0];
    output.sizes[size_t(dim)] = range.length();
    output.placements[*over] = Placement::shard_prefix(dim, blocks.lengths, blocks.grain);
    plan->arguments = {{size_t(call.index_of("end")),
                        output.placements[*over].part_length(range.length(), n_ranks, rank)}};
    return plan;
  }
  if (!kept) {
    ShiftedRange shifted(range, n_ranks);
    const bool is_few = range.length() * n_ranks < range.size;
    if (!is_shifted(argument.placements, dim, range) || (!shifted.is_near() && !is_few))
      return slice_by(call, dim, false);
    std::optional<CallPlan> plan = slice_by(call, dim, true);
    OutputPlan& output = plan->outputs[0];
    output.sizes[size_t(dim)] = range.length();
    output.copied_over = over;
    if (is_few) {  // all ranks get these elements
      output.placements[*over] = {};
      shifted.ranges.needed.assign(size_t(n_ranks), {range.start, range.end});
    }
    plan->run = [=, over = *over](const Operator&, torch::jit::Stack& stack, const Mesh& mesh) {
      stack = {exchanged_along(stack[0].toTensor(), dim, shifted.ranges, mesh.group(over))};
    };
    return plan;
  }

  std::optional<CallPlan> plan = slice_by(call, dim, true);
  OutputPlan& output = plan->outputs[0];
  output.sizes[size_t(dim)] = range.length();
  output.placements[*over] = kept->on(dim);
  if (range.step > 1) {
    plan->arguments = {{size_t(call.index_of("end")), c10::IValue()}};
    return plan;
  }
  // If a block has fewer units than ranks, all ranks get the whole block.
  const bool is_thin = run.length() == 1 && range.length() / blocks.grain < n_ranks;
  if (is_thin) output.placements[*over] = {};
  const int64_t begin = begin_in_part(blocks, run.begin, n_ranks, rank);
  const int64_t end = begin_in_part(blocks, run.end, n_ranks, rank);
  plan->run = [=, size = range.size, over = *over](const Operator&, torch::jit::Stack& stack,
                                                   const Mesh& mesh) {
    if (at::GradMode::is_enabled()) sliced_blocks(mesh).add(size, blocks);
    at::Tensor part = stack[0].toTensor().narrow(dim, begin, end - begin);
    if (is_thin) {
      Split split(kept->on(dim), kept->lengths[0], n_ranks);
      part = split.joined(mesh.group(over).all_gather(split.padded(part).contiguous()));
    }
    stack = {part};
  };
  return plan;
}

// The slice whose gradient slice_backward gets.
struct Sliced {
  std::vector<int64_t> sizes;
  int64_t dim;
  Range range;
  std::optional<Mesh::Dim> over;
  std::optional<Blocks> blocks = std::nullopt;  // nullopt if these are not the gradient's blocks

  explicit Sliced(const Call& call)
      : sizes(call.find("input_sizes")->toIntVector()),
        dim(call.dims("dim", call.tensors[0].tensor.dim())->front()),
        range(range_of(call, sizes[size_t(dim)])),
        over(only_splitting(call.tensors[0].placements, dim)) {
    if (!over) return;
    const Placement& placement = call.tensors[0].placements[*over];
    if (placement.is_prefix(range.length())) return;
    const Blocks own = blocks_of(placement, range.length());
    if (range.step > 1 && range.length() * range.step == range.size) {
      blocks = own;
      for (int64_t& length : blocks->lengths) length *= range.step;
      blocks->grain *= range.step;
    } else if (range.step == 1) {
      blocks = sliced_blocks(*call.mesh).find(range, own, call.mesh->size(*over));
    }
  }
};

std::vector<int64_t> remembered_blocks(const Call& call) {
  std::optional<Blocks> blocks = Sliced(call).blocks;
  if (!blocks) return {};
  blocks->lengths.push_back(blocks->grain);
  return std::move(blocks->lengths);
}

std::optional<CallPlan> slice_backward(const Call& call) {
  if (call.tensors.size() != 1) return std::nullopt;  // out
  const TensorArgument& grad = call.tensors[0];
  const auto [sizes, dim, range, over, blocks] = Sliced(call);
  int64_t start = range.start, end = range.end;
  if (blocks && range.step > 1) end = INT64_MAX;
  if (blocks && range.step == 1) {
    const int64_t n_ranks = call.mesh->size(*over), rank = call.mesh->coordinate(*over);
    const Span run = whole_blocks(*blocks, range);
    start = begin_in_part(*blocks, run.begin, n_ranks, rank);
    end = begin_in_part(*blocks, run.end, n_ranks, rank);
  }
  Letters all = letters(grad.tensor.dim());
  if (is_shifted(grad.placements, dim, range) && !blocks && !range.is_all()) {
    const ShiftedRange shifted(range, call.mesh->size(*over));
    if (shifted.is_near()) {
      CallPlan plan = plan_by_factors(call, {{all}, {all}});
      plan.outputs[0].sizes[size_t(dim)] = range.size;
      plan.run = [=, dim = dim, over = *over](const Operator&, torch::jit::Stack& stack,
                                              const Mesh& mesh) {
        stack = {
            exchanged_along(stack[0].toTensor(), dim, shifted.ranges.back(), mesh.group(over))};
      };
      return plan;
    }
  }
  if (!range.is_all() && !blocks) all[size_t(dim)] = -1;
  Factors factors{{all}, {all}};
  if (range.is_all()) {
    factors.linear = {1};
    start = 0;
    end = INT64_MAX;
  }
  CallPlan plan = plan_by_factors(call, factors);
  OutputPlan& output = plan.outputs[0];
  if (blocks && !range.is_all()) output.placements[*over] = blocks->on(dim);
  keep_local_sizes(call, plan, "input_sizes", sizes);
  plan.arguments.emplace_back(call.index_of("start"), start);
  plan.arguments.emplace_back(call.index_of("end"), end);
  return plan;
}

// Multiplies the halves of a dimension. Each may be split, if both are split alike.
std::optional<CallPlan> glu(const Call& call) {
  const int self = call.tensor_of("self"), grad = call.tensor_of("grad_output");
  const TensorArgument& halves = call.tensors[size_t(self)];
  int64_t n_dims = halves.tensor.dim(), dim = call.dims("dim", n_dims)->front();
  Letters all = letters(n_dims);
  all[size_t(dim)] = -1;
  auto factors = named_factors(call, {{"self", all}, {"grad_output", all}}, {all});
  if (!factors) return std::nullopt;
  CallPlan plan = plan_by_factors(call, *factors);
  std::optional<Mesh::Dim> over = only_splitting(halves.placements, dim);
  if (!over || !plan.inputs[size_t(self)][*over].is_replicated() ||
      !plan.outputs[0].placements[*over].is_replicated())
    return plan;
  const Placement& both = halves.placements[*over];
  const int64_t size = halves.sizes()[size_t(dim)];
  const Blocks blocks = blocks_of(both, size);
  const Span first = whole_blocks(blocks, {size, 0, size / 2, 1});
  const Blocks half = some_of(blocks, first);
  if (half != some_of(blocks, {first.end, int64_t(blocks.lengths.size())})) return plan;
  plan.inputs[size_t(self)][*over] = both;
  if (grad >= 0) plan.inputs[size_t(grad)][*over] = half.on(dim);
  plan.outputs[0].placements[*over] = grad >= 0 ? both : half.on(dim);
  plan.outputs[0].sizes[size_t(dim)] = grad >= 0 ? size : size / 2;
  return plan;
}

}  // namespace

const RuleTable& slicing_rules() {
  static const RuleTable table = [] {
    RuleTable table = {{"aten::slice", slice},
                       {"aten::slice_backward", slice_backward},
                       {"aten::glu", glu},
                       {"aten::glu_backward", glu}};
    table["aten::slice_backward"].remembers = remembered_blocks;
    table["aten::glu"].regroups = true;
    return table;
  }();
  return table;
}

}  // namespace redco::sharding
