// Rules for fused scaled dot product attention on CPU and CUDA. Heads and examples are independent,
// so they may be split. Positions of queries may be split unless the kernel counts them for its
// causal mask, and positions of keys for a kernel whose results of parts can be combined. The
// elements of a head may not be split.

#include "flops.h"
#include "gpu_bytes.h"
#include "rules.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

namespace redco::sharding {

namespace {

constexpr int head = 1, position = 2, key_position = 3;

// [batch, head, position, ...], aligned at the right like a broadcast attention mask. A dimension
// of size 1 has no factor.
Letters mask_letters(at::IntArrayRef sizes, at::IntArrayRef query, int64_t n_keys) {
  Letters result(sizes.size(), int8_t(-1));
  if (!sizes.empty() && sizes.back() == n_keys) result.back() = key_position;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    size_t from_right = sizes.size() - dim;
    if (from_right < 2 || from_right > 4) continue;
    int factor = int(4 - from_right);
    if (sizes[dim] == query[size_t(factor)]) result[dim] = int8_t(factor);
  }
  return result;
}

// The key and value heads that this process's query heads need, if there are fewer of them and they
// are replicated. They are heads [first, first + n). If ranks split queries that share a head,
// there is instead one head for each query head.
struct SharedHeads {
  int64_t first = 0, n = 0;
  std::vector<int64_t> of_query;  // if empty, the range suffices

  SharedHeads(const at::Tensor& query_heads, int64_t queries_per_head) {
    for (int64_t i = 0; i < query_heads.numel(); ++i)
      of_query.push_back(query_heads[i].item<int64_t>() / queries_per_head);
    if (of_query.empty()) return;
    first = of_query.front();
    n = of_query.back() - first + 1;
    auto n_queries = int64_t(of_query.size());
    bool is_range = n > 0 && n_queries % n == 0;
    for (int64_t i = 0; i < n_queries && is_range; ++i)
      is_range = of_query[size_t(i)] == first + i / (n_queries / n);
    if (is_range) of_query.clear();
  }

  at::Tensor index(const at::Tensor& like) const {
    return at::tensor(of_query, at::kLong).to(like.device());
  }
  at::Tensor chosen(const at::Tensor& all) const {
    return of_query.empty() ? all.narrow(head, first, n) : all.index_select(head, index(all));
  }
  // Returns the gradient of all heads: this rank's term of a sum.
  at::Tensor spread(const at::Tensor& grad, int64_t n_heads) const {
    std::vector<int64_t> sizes = grad.sizes().vec();
    sizes[head] = n_heads;
    at::Tensor all = at::zeros(sizes, grad.options());
    if (of_query.empty())
      all.narrow(head, first, n).copy_(grad);
    else
      all.index_add_(head, index(grad), grad);
    return all;
  }
};

// The indices of the heads that this process holds.
at::Tensor held_heads(const Call& call, const CallPlan& plan, size_t query) {
  int64_t n = call.tensors[query].sizes()[head];
  Placements placements = plan.inputs[query];
  for (Placement& placement : placements) {
    if (placement.dim != head) placement = {};
    placement.dim = 0;
  }
  return redistribute_local(at::arange(n, at::kLong), {n}, {1}, {}, placements, *call.mesh);
}

// Returns empty or zero results, because the kernels reject tensors without heads or examples.
void push_nothing(const Operator& op, torch::jit::Stack& stack, const at::Tensor& query,
                  const at::Tensor& key, const at::Tensor& value, bool is_backward) {
  if (is_backward) {
    stack = {at::zeros_like(query), at::zeros_like(key), at::zeros_like(value)};
  } else {
    std::vector<int64_t> sizes = query.sizes().vec();
    sizes.back() = value.size(-1);
    at::Tensor output = at::empty(sizes, query.options());
    sizes.pop_back();
    stack = {output,
             at::empty(sizes, query.options().dtype(at::toOpMathType(query.scalar_type())))};
  }
  for (size_t i = stack.size(); i < op.returned.size(); ++i) {
    bool is_tensor = op.schema().returns()[i].type()->kind() == c10::TypeKind::TensorType;
    stack.push_back(is_tensor ? c10::IValue(at::Tensor()) : c10::IValue(0));
  }
}

// Runs attention on local tensors, which may be empty or share replicated key and value heads.
struct OnParts {
  size_t query, key, value;  // arguments
  bool is_backward;
  std::optional<SharedHeads> shared = std::nullopt;

  void operator()(const Operator& op, torch::jit::Stack& stack, const Mesh&) const {
    // The kernels need contiguous heads; redistributed tensors may have another memory order.
    for (c10::IValue& value : stack)
      if (value.isTensor() && value.toTensor().dim() == 4 && value.toTensor().stride(3) != 1)
        value = value.toTensor().contiguous();
    at::Tensor q = stack[query].toTensor(), k = stack[key].toTensor(), v = stack[value].toTensor();
    if (q.numel() == 0) return push_nothing(op, stack, q, k, v, is_backward);
    if (shared) {
      stack[key] = shared->chosen(k);
      stack[value] = shared->chosen(v);
    }
    op.handle.callBoxed(&stack);
    if (shared && is_backward)
      for (size_t i : {1, 2}) stack[i] = shared->spread(stack[i].toTensor(), k.size(head));
  }
};

// Combines the results of parts of the keys, [batch, heads, length, size] and [batch, heads,
// length]. Ranks exchange nothing else.
void combine(torch::jit::Stack& stack, const MeshDims& over, const Mesh& mesh) {
  at::Tensor sums = stack[0].toTensor(), logsumexp = stack[1].toTensor();
  for (Mesh::Dim dim : over) {
    const at::Tensor parts =
        mesh.group(dim).all_gather(at::cat({sums, logsumexp.unsqueeze(-1)}, -1).contiguous());
    const at::Tensor of_parts = parts.select(-1, sums.size(-1));
    logsumexp = of_parts.logsumexp(0);
    const at::Tensor weights =
        of_parts.sub(logsumexp.masked_fill(logsumexp.isneginf(), 0)).exp_().unsqueeze(-1);
    sums = parts.narrow(-1, 0, sums.size(-1)).mul(weights).sum(0);
  }
  stack = {sums, logsumexp};
}

// query: [batch, heads, ...]; key and value: the same, or fewer heads, each for a run of
// consecutive query heads. First result: [batch, heads, ...]; backward: the gradients of query, key
// and value.
std::optional<CallPlan> attention(const Call& call) {
  int query = call.tensor_of("query"), key = call.tensor_of("key"), value = call.tensor_of("value");
  if (query < 0 || key < 0 || value < 0) return std::nullopt;
  at::IntArrayRef sizes = call.tensors[size_t(query)].sizes();
  int64_t n_kv_heads = call.tensors[size_t(key)].sizes()[size_t(head)];
  const int64_t n_keys = call.tensors[size_t(key)].sizes()[size_t(position)];
  if (sizes.size() != 4 || n_kv_heads == 0) return std::nullopt;
  bool is_backward = call.tensor_of("grad_out") >= 0 || call.tensor_of("grad_out_") >= 0;

  // Causal attention keeps its positions whole, and segments are causal. So do kernels that pad
  // their logsumexp along the positions.
  const bool is_whole = call.boolean("is_causal", false) || call.index_of("segment_ids") >= 0 ||
                        call.op.facts.kind == ProductKind::biased_attention;
  const bool is_part = call.op.name == "redco::_attention_part";
  const auto of_keys = int8_t(is_part ? key_position : -1);
  Letters x = {batch, head, int8_t(is_whole ? -1 : position), -1}, all = {batch, head, of_keys, -1},
          mask;
  auto factors_with = [&](const Letters& kv) {
    Factors factors;
    for (const TensorArgument& argument : call.tensors) {
      const std::string& name = call.op.schema().arguments()[argument.argument].name();
      auto n_dims = size_t(argument.tensor.dim());
      Letters& own = factors.inputs.emplace_back(n_dims, int8_t(-1));
      if (name == "key" || name == "value") own = kv;
      if (name == "query" || name == "out" || name == "grad_out" || name == "grad_out_") own = x;
      if (name == "logsumexp") own[0] = batch, own[1] = head, own[2] = x[2];
      if (name == "segment_ids") own[0] = batch;
      const bool is_mask = name == "attn_mask" || name == "attn_bias";
      if (is_mask) own = mask_letters(argument.sizes(), sizes, n_keys);
      for (int8_t& letter : own) {
        if (letter == position) letter = x[2];
        if (letter == key_position) letter = of_keys;
      }
      if (is_mask) mask = own;
    }
    if (is_backward)
      factors.outputs = {x, kv, kv, mask};
    else
      factors.outputs = {x, {batch, head, x[2]}};
    return factors;
  };
  Factors factors = factors_with(all);
  bool is_shared = n_kv_heads != sizes[head] && !(splits_evenly(call, factors, head, n_kv_heads) &&
                                                  splits_evenly(call, factors, head, sizes[head]));
  if (is_shared) factors = factors_with({batch, -1, of_keys, -1});
  CallPlan plan = plan_by_factors(call, factors);
  for (size_t i : {1, 2})
    if (is_backward && !is_shared) plan.outputs[i].sizes[head] = n_kv_heads;
  plan.outputs[0].sizes[head] = sizes[head];

  OnParts on_parts{call.tensors[size_t(query)].argument, call.tensors[size_t(key)].argument,
                   call.tensors[size_t(value)].argument, is_backward};
  at::Tensor heads = held_heads(call, plan, size_t(query));
  if (is_shared && heads.numel() < sizes[head])
    on_parts.shared.emplace(heads, sizes[head] / n_kv_heads);
  plan.run = on_parts;
  if (!is_part) return plan;
  if (const MeshDims over = reduced_over(plan); !over.empty())
    plan.run = [=](const Operator& op, torch::jit::Stack& stack, const Mesh& mesh) {
      on_parts(op, stack, mesh);
      combine(stack, over, mesh);
    };
  return plan;
}

// The operations of attention within segments, of the arguments `first` to `first` + 2. `window` is
// the argument of the window, which may be none. Counts each row as one sequence, because segments
// are values.
template <size_t first, size_t window, int times>
double segment_flops(const Inputs& inputs) {
  const auto length = double(sizes(inputs, first)[position]);
  const double seen =
      inputs[window].isNone() ? length : std::min(length, double(inputs[window].toInt()));
  return attention_flops<first, times>(inputs) * (length > 0 ? seen / length : 1);
}

// Chooses the kernel from the logical tensors, so that all ranks choose alike.
std::optional<CallPlan> choose_kernel(const Call& call) {
  CallPlan plan;
  std::vector<std::pair<size_t, Geometry>> tensors;
  for (const TensorArgument& argument : call.tensors) {
    plan.inputs.push_back(argument.placements);
    const at::Tensor& t = argument.tensor;
    tensors.push_back({argument.argument,
                       {Sizes(t.sizes().begin(), t.sizes().end()),
                        Sizes(t.strides().begin(), t.strides().end())}});
  }
  plan.run = [tensors](const Operator& op, torch::jit::Stack& stack, const Mesh&) {
    for (const auto& [argument, geometry] : tensors) {
      // The elements are not read.
      at::Tensor empty = at::empty({0}, stack[argument].toTensor().options());
      empty.unsafeGetTensorImpl()->set_sizes_and_strides(geometry.sizes, geometry.strides);
      stack[argument] = empty;
    }
    op.handle.callBoxed(&stack);
  };
  return plan;
}

// A layer of torch.nn's encoder, without gradients. Examples are independent.
std::optional<CallPlan> encoder_layer(const Call& call) {
  const TensorArgument& src = call.tensors[size_t(call.tensor_of("src"))];
  if (src.tensor.dim() != 3 || call.tensor_of("mask") >= 0) return std::nullopt;
  Factors factors{{}, {{batch, -1, -1}}};
  for (const TensorArgument& argument : call.tensors)
    factors.inputs.push_back(argument.first == src.first
                                 ? Letters{batch, -1, -1}
                                 : Letters(size_t(argument.tensor.dim()), int8_t(-1)));
  if (!all_ranks_hold(call, factors, batch, src.sizes()[0])) factors.whole = 1;
  return plan_by_factors(call, factors);
}

}  // namespace

const RuleTable& attention_rules() {
  static const RuleTable table = [] {
    OperatorFacts whole_heads = attention;
    whole_heads.has_heads = true;
    whole_heads.kind = ProductKind::attention;
    OperatorFacts forward = whole_heads, backward = whole_heads;
    RuleTable table = {
        {"aten::_scaled_dot_product_fused_attention_overrideable", whole_heads},
        {"aten::_scaled_dot_product_fused_attention_overrideable_backward", whole_heads},
        {"aten::_fused_sdp_choice", choose_kernel},
        {"aten::_transformer_encoder_layer_fwd", encoder_layer},
    };
    forward.flops = attention_flops<0, 1>;
    backward.flops = attention_flops<1, 2>;
    OperatorFacts biased = forward, biased_backward = backward;
    biased.kind = biased_backward.kind = ProductKind::biased_attention;
    biased.gpu = {.starts = 3};
    biased_backward.gpu = {.starts = 4.5};
    forward.gpu = {.starts = 5};
    backward.gpu = {.starts = 5, .workspace = workspace_of_attention_backward};
    table["redco::_attention_part"] = forward;
    table["aten::_scaled_dot_product_flash_attention_for_cpu"] = forward;
    table["aten::_scaled_dot_product_flash_attention"] = forward;
    table["aten::_scaled_dot_product_efficient_attention"] = biased;
    table["aten::_scaled_dot_product_cudnn_attention"] = forward;
    table["aten::_scaled_dot_product_flash_attention_for_cpu_backward"] = backward;
    table["aten::_scaled_dot_product_flash_attention_backward"] = backward;
    table["aten::_scaled_dot_product_efficient_attention_backward"] = biased_backward;
    table["aten::_scaled_dot_product_cudnn_attention_backward"] = backward;
    forward.flops = segment_flops<0, 4, 1>;
    backward.flops = segment_flops<1, 7, 2>;
    table["redco::_segment_attention"] = forward;
    table["redco::_segment_attention_backward"] = backward;
    return table;
  }();
  return table;
}

}  // namespace redco::sharding
