// Rules for convolutions with any number of spatial dimensions. The batch and the channels may be
// split, spatial dimensions may not.

#include "flops.h"
#include "gpu_bytes.h"
#include "rules.h"

namespace redco::sharding {

namespace {

constexpr int in_channel = 1, out_channel = 2;

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

// Sets the number of groups to that of the local channels.
void set_groups(const Call& call, const ConvolutionLetters& l, CallPlan& plan) {
  if (l.groups == 1) return;
  auto input = size_t(call.tensor_of("input"));
  int64_t n_own = local_sizes(call.tensors[input].sizes(), plan.inputs[input], *call.mesh)[1];
  set_argument(call, plan, "groups", l.groups * n_own / l.n_in);
}

std::optional<CallPlan> convolution(const Call& call) {
  ConvolutionLetters l(call);
  auto factors =
      named_factors(call, {{"input", l.input}, {"weight", l.weight}, {"bias", l.bias}}, {l.output});
  if (!factors) return std::nullopt;
  l.keep_whole(call, *factors);
  if (int bias = call.tensor_of("bias"); bias >= 0) factors->added = uint64_t{1} << bias;
  CallPlan plan = plan_by_factors(call, *factors);
  set_groups(call, l, plan);
  plan.outputs[0].sizes[1] = l.n_out;
  return plan;
}

std::optional<CallPlan> convolution_backward(const Call& call) {
  ConvolutionLetters l(call);
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
