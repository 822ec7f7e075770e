// Rules for convolutions with any number of spatial dimensions. The batch and the channels may be
// split. So may one spatial dimension, of positions that context shards split: neighbours exchange
// what a kernel reads across a cut. Other spatial dimensions may not.

#include "flops.h"
#include "gpu_bytes.h"
#include "halo.h"
#include "rules.h"

#include <algorithm>
#include <utility>

namespace redco::sharding {

namespace {

constexpr int in_channel = 1, out_channel = 2, place = 3;

// input: [n, in, ...]; weight: [out, in / groups, ...], or if transposed [in, out / groups, ...];
// output: [n, out, ...]; bias: [out]. With groups, input and output channels are one factor.
struct ConvolutionLetters {
  explicit ConvolutionLetters(const Call& call)
      : groups(call.integer("groups", 1)), is_transposed(call.boolean("transposed", false)) {
    const TensorArgument& weight_argument = call.tensors[size_t(call.tensor_of("weight"))];
    auto n_dims = size_t(weight_argument.tensor.dim());
    int64_t per_group = weight_argument.sizes()[1];
    n_in = is_transposed ? weight_argument.sizes()[0] : per_group * groups;
    n_out = is_transposed ? per_group * groups : weight_argument.sizes()[0];
    input = output = weight = Letters(n_dims, int8_t(-1));
    int in = in_channel, out = groups > 1 ? in_channel : out_channel;
    input[0] = output[0] = batch;
    input[1] = int8_t(in);
    output[1] = bias[0] = int8_t(out);
    weight[0] = int8_t(is_transposed ? in : out);
    if (groups == 1) weight[1] = int8_t(is_transposed ? out : in);
  }

  // The kernels reject tensors without channels, so all ranks must hold some.
  void keep_whole(const Call& call, Factors& factors) const {
    if (groups > 1) {
      if (!splits_evenly(call, factors, in_channel, groups)) factors.whole |= 1 << in_channel;
      return;
    }
    if (!all_ranks_hold(call, factors, in_channel, n_in)) factors.whole |= 1 << in_channel;
    if (!all_ranks_hold(call, factors, out_channel, n_out)) factors.whole |= 1 << out_channel;
  }

  int64_t groups;
  bool is_transposed;
  int64_t n_in = 0, n_out = 0;
  Letters input, output, weight, bias = {-1};
};

// A spatial dimension that context shards split, of the input and of the output alike in even
// parts, and the elements of the input that a part of the output reads.
struct Halo {
  int64_t dim;
  Mesh::Dim over;
  int64_t n_out;         // elements of the whole output
  HeldAndNeeded ranges;  // of the input; those before and behind it are padding
  std::vector<int64_t> padding;

  // Nullopt if the dimension has to be whole.
  static std::optional<Halo> of(const Call& call, bool is_transposed) {
    if (is_transposed) return std::nullopt;
    std::optional<Halo> halo;
    for (const char* name : {"input", "grad_output"}) {
      const int at = call.tensor_of(name);
      if (at < 0) continue;
      const Placements& placements = call.tensors[size_t(at)].placements;
      for (Mesh::Dim over : Mesh::dims) {
        const Placement& placement = placements[over];
        if (!placement.is_sharded() || placement.dim < 2) continue;
        const bool is_known = halo && (halo->dim != placement.dim || halo->over != over);
        if (is_known || !Mesh::has(over, Mesh::context) ||
            placement != Placement::shard(placement.dim))
          return std::nullopt;
        halo = Halo{placement.dim, over, 0, {}, {}};
      }
    }
    if (!halo || !halo->read(call)) return std::nullopt;
    return halo;
  }

  // Finds the ranges. Returns whether it is worth it: every rank has outputs, and reads few inputs
  // of others.
  bool read(const Call& call) {
    const at::IntArrayRef input = call.tensors[size_t(call.tensor_of("input"))].sizes(),
                          weight = call.tensors[size_t(call.tensor_of("weight"))].sizes();
    const size_t n_spatial = input.size() - 2, place = size_t(dim - 2);
    const auto along = [&](const char* name) {
      std::vector<int64_t> values = call.find(name)->toIntVector();
      if (values.size() == 1) values.resize(n_spatial, values[0]);
      return values;
    };
    const std::vector<int64_t> strides = along("stride"), dilations = along("dilation");
    padding = along("padding");
    // LibTorch raises errors about the others.
    for (const auto& values : {strides, dilations, padding})
      if (values.size() != n_spatial || weight.size() != input.size()) return false;
    const int64_t stride = strides[place], before = std::exchange(padding[place], 0);
    const int64_t reach = dilations[place] * (weight[size_t(dim)] - 1) + 1;  // of an output
    if (stride < 1 || dilations[place] < 1 || before < 0 || weight[size_t(dim)] < 1) return false;
    const int64_t n_in = input[size_t(dim)], n_ranks = call.mesh->size(over);
    n_out = (n_in + 2 * before - reach) / stride + 1;
    if (std::min(n_in, n_out) < n_ranks) return false;
    ranges.held = parts_of_ranks(n_in, n_ranks);
    for (const Span& part : parts_of_ranks(n_out, n_ranks))
      ranges.needed.push_back(
          {part.begin * stride - before, (part.end - 1) * stride - before + reach});
    return ranges.sends_few();
  }

  // Whether a plan keeps the dimension split.
  bool is_kept(const CallPlan& plan, int argument) const {
    return plan.inputs[size_t(argument)][over] == Placement::shard(dim);
  }
};

// Sets the number of groups to that of the local channels.
void set_groups(const Call& call, const ConvolutionLetters& l, CallPlan& plan) {
  if (l.groups == 1) return;
  auto input = size_t(call.tensor_of("input"));
  int64_t n_own = local_sizes(call.tensors[input].sizes(), plan.inputs[input], *call.mesh)[1];
  set_argument(call, plan, "groups", l.groups * n_own / l.n_in);
}

std::optional<CallPlan> convolution(const Call& call) {
  ConvolutionLetters l(call);
  const auto halo = Halo::of(call, l.is_transposed);
  if (halo) l.input[size_t(halo->dim)] = l.output[size_t(halo->dim)] = place;
  auto factors =
      named_factors(call, {{"input", l.input}, {"weight", l.weight}, {"bias", l.bias}}, {l.output});
  if (!factors) return std::nullopt;
  l.keep_whole(call, *factors);
  if (int bias = call.tensor_of("bias"); bias >= 0) factors->added = uint64_t{1} << bias;
  CallPlan plan = plan_by_factors(call, *factors);
  set_groups(call, l, plan);
  plan.outputs[0].sizes[1] = l.n_out;
  const int input = call.tensor_of("input");
  if (!halo) return plan;
  plan.outputs[0].sizes[size_t(halo->dim)] = halo->n_out;
  if (!halo->is_kept(plan, input)) return plan;
  set_argument(call, plan, "padding", halo->padding);
  plan.run = [=, argument = call.tensors[size_t(input)].argument](
                 const Operator& op, torch::jit::Stack& stack, const Mesh& mesh) {
    stack[argument] = exchanged_along(stack[argument].toTensor(), halo->dim, halo->ranges,
                                      mesh.group(halo->over));
    op.handle.callBoxed(&stack);
  };
  return plan;
}

std::optional<CallPlan> convolution_backward(const Call& call) {
  ConvolutionLetters l(call);
  const auto halo = Halo::of(call, l.is_transposed);
  if (halo) l.input[size_t(halo->dim)] = l.output[size_t(halo->dim)] = place;
  auto factors =
      named_factors(call, {{"grad_output", l.output}, {"input", l.input}, {"weight", l.weight}},
                    {l.input, l.weight, l.bias});
  if (!factors) return std::nullopt;
  l.keep_whole(call, *factors);
  CallPlan plan = plan_by_factors(call, *factors);
  auto grad = size_t(call.tensor_of("grad_output"));
  set_groups(call, l, plan);
  // The gradient of the bias depends only on the output's gradient.
  for (Mesh::Dim dim : Mesh::dims)
    if (plan.inputs[grad][dim].is_replicated()) plan.outputs[2].placements[dim] = {};
  plan.outputs[0].sizes[1] = l.n_in;
  plan.outputs[1].sizes[0] = l.is_transposed ? l.n_in : l.n_out;
  plan.outputs[2].sizes = {l.n_out};
  // Without input channels, LibTorch returns an output without channels but a bias gradient with
  // them.
  const c10::IValue* sizes = call.find("bias_sizes");
  Sizes own = local_sizes({l.n_out}, plan.outputs[2].placements, *call.mesh);
  if (sizes && sizes->isIntList())
    set_argument(call, plan, "bias_sizes", std::vector<int64_t>(own.begin(), own.end()));
  const int input = call.tensor_of("input");
  if (!halo) return plan;
  plan.outputs[0].sizes[size_t(halo->dim)] = call.tensors[size_t(input)].sizes()[size_t(halo->dim)];
  if (!halo->is_kept(plan, input)) return plan;
  set_argument(call, plan, "padding", halo->padding);
  plan.run = [=, argument = call.tensors[size_t(input)].argument](
                 const Operator& op, torch::jit::Stack& stack, const Mesh& mesh) {
    Group& group = mesh.group(halo->over);
    stack[argument] = exchanged_along(stack[argument].toTensor(), halo->dim, halo->ranges, group);
    op.handle.callBoxed(&stack);
    if (const at::Tensor grad = stack[0].toTensor(); grad.defined())
      stack[0] = summed_along(grad, halo->dim, halo->ranges.back(), group);
  };
  return plan;
}

}  // namespace

const RuleTable& convolution_rules() {
  static const RuleTable table = [] {
    OperatorFacts forward = convolution, backward = convolution_backward;
    forward.is_product = true;
    forward.kind = backward.kind = ProductKind::convolution;
    RuleTable table = {{"aten::_convolution", forward},
                       {"aten::convolution_overrideable", forward}};
    forward.flops = convolution_flops;
    backward.flops = convolution_backward_flops;
    forward.gpu = {.starts = 5, .workspace = workspace_of_convolution};
    backward.gpu = {.starts = 8, .workspace = workspace_of_convolution_backward};
    table["aten::convolution"] = forward;
    table["aten::convolution_backward"] = backward;
    return table;
  }();
  return table;
}

}  // namespace redco::sharding
