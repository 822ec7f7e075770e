// Rules for pooling, resampling and padding of images. Examples and channels may be split. The last
// one to three dimensions, the spatial ones, may not. Operators that compute sums of their input
// work on the terms of partial sums, unless they make these larger.

#include "rules.h"

#include <string>

namespace redco::sharding {

namespace {

// All tensors are [leading ..., spatial ...].
Rule spatial(int64_t n_spatial, bool adds_up) {
  return [n_spatial, adds_up](const Call& call) -> std::optional<CallPlan> {
    Factors factors;
    int64_t n_dims = call.tensors[0].tensor.dim();
    Letters all(size_t(n_dims), int8_t(-1));
    for (int64_t dim = 0; dim < n_dims - n_spatial; ++dim) all[size_t(dim)] = int8_t(dim);
    for (const TensorArgument& argument : call.tensors) {
      if (argument.tensor.dim() != n_dims || argument.is_written) return std::nullopt;
      factors.inputs.push_back(all);
    }
    factors.outputs.assign(call.op.returned.size(), all);
    // All kernels accept an empty batch, but not an image without channels.
    for (int dim = 0; dim < n_dims - n_spatial; ++dim) {
      bool is_batch = dim == 0 && n_dims - n_spatial > 1;
      if (!is_batch && !all_ranks_hold(call, factors, dim, call.tensors[0].sizes()[size_t(dim)]))
        factors.whole |= uint64_t{1} << dim;
    }
    // A backward may have the forward's input as its second tensor, of which it needs the sizes.
    if (adds_up && works_on_terms(call, /*only_moves=*/false)) factors.linear = {1};
    CallPlan plan = plan_by_factors(call, factors);
    if (const c10::IValue* sizes = call.find("input_size")) {
      std::vector<int64_t> local = sizes->toIntVector();
      Sizes held = local_sizes(call.tensors[0].sizes(), plan.inputs[0], *call.mesh);
      for (int64_t dim = 0; dim < n_dims - n_spatial; ++dim) local[size_t(dim)] = held[size_t(dim)];
      set_argument(call, plan, "input_size", local);
    }
    return plan;
  };
}

// input: [n, c, ...], grid: [n, ..., 2 or 3], the position read by each point of the output.
std::optional<CallPlan> grid_sampler(const Call& call) {
  int64_t n_dims = call.tensors[0].tensor.dim();
  Letters input(size_t(n_dims), int8_t(-1)), grid = input;
  input[0] = grid[0] = 0;
  input[1] = 1;
  bool is_backward = call.tensor_of("grad_output") >= 0;
  auto factors =
      named_factors(call, {{"grad_output", input}, {"input", input}, {"grid", grid}},
                    is_backward ? std::vector<Letters>{input, grid} : std::vector<Letters>{input});
  if (!factors) return std::nullopt;
  int64_t n_channels = call.tensors[size_t(call.tensor_of("input"))].sizes()[1];
  if (!all_ranks_hold(call, *factors, 1, n_channels)) factors->whole = 1 << 1;
  return plan_by_factors(call, *factors);
}

// Which direction computes sums of its input, no larger than the input.
enum class Terms { none, forward, backward, both };

struct SpatialOperator {
  const char* name;
  int64_t n_spatial;
  Terms terms = Terms::none;
  GpuCost forward = {}, backward = {};
};

constexpr SpatialOperator spatial_operators[] = {
    {"aten::max_pool2d_with_indices", 2, Terms::none, {.passes = 1.8}, {.passes = 4, .starts = 2}},
    {"aten::max_pool3d_with_indices", 3},
    {"aten::avg_pool2d", 2, Terms::forward},
    {"aten::avg_pool3d", 3, Terms::forward},
    {"aten::_adaptive_avg_pool2d", 2, Terms::forward},
    {"aten::_adaptive_avg_pool3d", 3, Terms::forward},
    {"aten::adaptive_max_pool2d", 2},
    {"aten::adaptive_max_pool3d", 3},
    {"aten::upsample_nearest1d", 1, Terms::backward},
    {"aten::upsample_nearest2d", 2, Terms::backward},
    {"aten::upsample_nearest3d", 3, Terms::backward},
    {"aten::_upsample_nearest_exact1d", 1, Terms::backward},
    {"aten::_upsample_nearest_exact2d", 2, Terms::backward},
    {"aten::_upsample_nearest_exact3d", 3, Terms::backward},
    {"aten::upsample_linear1d", 1, Terms::backward},
    {"aten::upsample_bilinear2d", 2, Terms::backward},
    {"aten::upsample_bicubic2d", 2, Terms::backward},
    {"aten::upsample_trilinear3d", 3, Terms::backward},
    {"aten::_upsample_bilinear2d_aa", 2, Terms::backward},
    {"aten::_upsample_bicubic2d_aa", 2, Terms::backward},
    {"aten::reflection_pad1d", 1, Terms::backward},
    {"aten::reflection_pad2d", 2, Terms::backward},
    {"aten::reflection_pad3d", 3, Terms::backward},
    {"aten::replication_pad1d", 1, Terms::backward},
    {"aten::replication_pad2d", 2, Terms::backward},
    {"aten::replication_pad3d", 3, Terms::backward},
    // These move channels into spatial dimensions and back.
    {"aten::pixel_shuffle", 3, Terms::both},
    {"aten::pixel_unshuffle", 3, Terms::both},
    {"aten::channel_shuffle", 3, Terms::both},
};

}  // namespace

const RuleTable& spatial_rules() {
  static const std::vector<std::string> backward_names = [] {
    std::vector<std::string> names;
    for (const SpatialOperator& row : spatial_operators)
      names.push_back(std::string(row.name) + "_backward");
    return names;
  }();
  static const RuleTable table = [] {
    RuleTable table = {{"aten::grid_sampler_2d", grid_sampler},
                       {"aten::grid_sampler_3d", grid_sampler},
                       {"aten::grid_sampler_2d_backward", grid_sampler},
                       {"aten::grid_sampler_3d_backward", grid_sampler}};
    for (size_t i = 0; i < std::size(spatial_operators); ++i) {
      const SpatialOperator& row = spatial_operators[i];
      const bool is_both = row.terms == Terms::both;
      table[row.name] =
          with_cost(spatial(row.n_spatial, is_both || row.terms == Terms::forward), row.forward);
      table[backward_names[i]] =
          with_cost(spatial(row.n_spatial, is_both || row.terms == Terms::backward), row.backward);
    }
    return table;
  }();
  return table;
}

}  // namespace redco::sharding
