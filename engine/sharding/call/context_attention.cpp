// Attention between positions that context shards split.

#include "context_attention.h"

#include "../tensor/sharded_tensor.h"
#include "composites.h"

#include <redco/moves.h>
#include <redco/sharding.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/repeat_interleave.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

namespace redco::sharding {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using torch::jit::Stack;

constexpr int64_t heads = 1, positions = 2;  // dimensions of query, key and value

enum Argument : uint8_t { query, key, value, mask, dropout, is_causal, scale, enable_gqa, n };

struct Exchange : torch::CustomClassHolder {
  Exchange(ShardedTensorImpl& tensor, const Placements& to)
      : mesh(tensor.mesh()), from(tensor.placements()), to(to) {}
  std::shared_ptr<const Mesh> mesh;
  Placements from, to;
};

// Redistributes a tensor. Backward redistributes the gradient to the placements of the tensor.
class Exchanged : public torch::autograd::Function<Exchanged> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor, const Placements& to) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    Moving moving(Move::within_operator, "attention");
    ShardedTensorImpl* impl = sharded_impl(tensor);
    const Placements& from = impl->placements();
    ctx->saved_data["exchange"] =
        c10::IValue::make_capsule(c10::make_intrusive<Exchange>(*impl, to));
    at::Tensor local = redistribute_local(impl->local(), tensor.sizes(), tensor.strides(), from, to,
                                          *impl->mesh());
    return wrap(laid_out(local, geometry_of(tensor)), to, impl->mesh(), geometry_of(tensor));
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return {{}, {}};
    auto exchange =
        c10::static_intrusive_pointer_cast<Exchange>(ctx->saved_data["exchange"].toCapsule());
    const at::Tensor& grad = grads[0];
    return {exchanged(is_sharded(grad) ? grad : shard(grad, exchange->mesh, {}), exchange->to,
                      exchange->from),
            {}};
  }
  static at::Tensor exchanged(const at::Tensor& tensor, const Placements& from,
                              const Placements& to) {
    return apply(redistribute(tensor, from), to);
  }
};

// The number of parts that other dimensions of the mesh than `dim` split the heads into.
int64_t parts_of_heads(const at::Tensor& tensor, Mesh::Dim dim) {
  const Placements placements = placements_of(tensor);
  int64_t n_parts = 1;
  for (Mesh::Dim other : splitting(placements, heads))
    if (other != dim) n_parts *= mesh_of(tensor)->size(other);
  return n_parts;
}

bool splits_positions(const at::Tensor& tensor, Mesh::Dim dim) {
  const Placement placement = placements_of(tensor)[dim];
  return placement.is_sharded() && placement.dim == positions;
}

// Returns the placements in which each context shard holds heads of a tensor instead of positions,
// if each head is first repeated `times`. Nullopt if there are none.
std::optional<Placements> by_heads(const at::Tensor& tensor, Mesh::Dim dim, int64_t times) {
  if (!is_sharded(tensor) || tensor.dim() != 4) return std::nullopt;
  Placements placements = placements_of(tensor);
  if (!placements[dim].is_replicated() && !splits_positions(tensor, dim)) return std::nullopt;
  for (Mesh::Dim other : Mesh::dims) {
    const Placement& placement = placements[other];
    if (other == dim || placement.is_replicated()) continue;
    if (!placement.is_sharded() || placement.dim > heads) return std::nullopt;
    if (placement.dim == heads && (placement.is_in_blocks() || placement.grain > 1))
      return std::nullopt;
  }
  const int64_t n_heads = tensor.size(heads) * times, n_parts = parts_of_heads(tensor, dim);
  if (n_heads % (n_parts * mesh_of(tensor)->size(dim)) != 0) return std::nullopt;
  placements[dim] = Placement::shard(heads, n_parts > 1 ? n_heads / n_parts : 0);
  return placements;
}

// Returns how often to repeat heads of keys and values so that each context shard has the heads of
// its queries. Repeats as little as possible: once per shard that has queries of the head.
int64_t times_to_repeat(const at::Tensor& q, const at::Tensor& k, Mesh::Dim dim) {
  const int64_t own = std::max<int64_t>(k.size(heads) / parts_of_heads(k, dim), 1);
  const int64_t times = std::lcm(own, mesh_of(k)->size(dim)) / own;
  return q.size(heads) % (k.size(heads) * times) == 0 ? times : 1;
}

// [positions of queries, positions of keys]: whether a key is not after the query. Split like the
// queries.
at::Tensor causal_mask(const at::Tensor& q, const at::Tensor& k, Mesh::Dim dim) {
  Placements placements;
  placements[dim] = Placement::shard(0);
  const auto options = at::TensorOptions(at::kLong).device(q.device());
  at::Tensor rows = at::arange(q.size(positions), options).unsqueeze(1);
  return shard(rows, mesh_of(q), placements).ge(at::arange(k.size(positions), options));
}

// Gathers a mask of all heads, or the ids of segments, over the context shards. All layers of a
// model get the same tensor, so keeps the last gathered result while the given tensor lives.
at::Tensor whole_mask(const at::Tensor& given, Mesh::Dim dim) {
  if (!is_sharded(given) || given.requires_grad() || (given.dim() > 2 && given.size(-3) > 1))
    return given;
  Placements placements = placements_of(given);
  const at::Tensor& local = memory_of(given);
  if (!placements[dim].is_sharded() || local.is_inference()) return given;
  struct Gathered {
    c10::weak_intrusive_ptr<c10::TensorImpl> of;
    int64_t version;
    at::Tensor whole;
  };
  thread_local std::optional<Gathered> last;
  const bool is_known = last && !last->of.expired() &&
                        last->of._unsafe_get_target() == given.unsafeGetTensorImpl() &&
                        last->version == local._version();
  if (!is_known) {
    placements[dim] = {};
    last = {c10::weak_intrusive_ptr<c10::TensorImpl>(given.getIntrusivePtr()), local._version(),
            redistribute(given, placements)};
  }
  return last->whole;
}

// The context dimension that splits the positions of queries.
std::optional<Mesh::Dim> dim_over_positions(const at::Tensor& q) {
  if (!is_sharded(q) || q.dim() != 4) return std::nullopt;
  for (Mesh::Dim dim : Mesh::dims_of(Mesh::context))
    if (splits_positions(q, dim)) return dim;
  return std::nullopt;
}

// Query, key and value, of which each context shard holds heads instead of positions, and the
// placements in which the result is returned.
struct ByHeads {
  at::Tensor query, key, value;
  Placements placements, given;

  at::Tensor back(const at::Tensor& result) const {
    return Exchanged::exchanged(result, placements, given);
  }
};

// Returns nullopt if the number of context shards does not divide the heads.
std::optional<ByHeads> exchanged_by_heads(const at::Tensor& q, const at::Tensor& k,
                                          const at::Tensor& v, Mesh::Dim dim, bool are_grouped) {
  const int64_t times =
      are_grouped && is_sharded(k) && k.dim() == 4 ? times_to_repeat(q, k, dim) : 1;
  const std::optional<Placements> of_q = by_heads(q, dim, 1), of_k = by_heads(k, dim, times),
                                  of_v = by_heads(v, dim, times);
  if (!of_q || !of_k || !of_v) return std::nullopt;
  const auto repeated = [&](const at::Tensor& tensor) {
    return times > 1 ? tensor.repeat_interleave(times, heads) : tensor;
  };
  return ByHeads{Exchanged::apply(q, *of_q), Exchanged::apply(repeated(k), *of_k),
                 Exchanged::apply(repeated(v), *of_v), *of_q, placements_of(q)};
}

bool is_recorded(const c10::IValue& tensor) {
  return at::GradMode::is_enabled() && tensor.isTensor() && tensor.toTensor().requires_grad();
}

// Whether few queries, which all ranks hold, attend to keys that context shards hold parts of: then
// each attends to its part, and they combine the results. They send less than the keys.
bool has_few_queries(Stack& stack) {
  const auto argument = [&](Argument i) -> c10::IValue& { return torch::jit::peek(stack, i, n); };
  const at::Tensor q = argument(query).toTensor(), k = argument(key).toTensor(),
                   v = argument(value).toTensor();
  const std::optional<Mesh::Dim> dim = dim_over_positions(k);
  if (!dim || dim_over_positions(v) != dim || q.dim() != 4) return false;
  if (is_sharded(q) && !splitting(placements_of(q), positions).empty()) return false;
  for (Argument i : {query, key, value, mask})
    if (is_recorded(argument(i))) return false;
  const bool is_plain = !argument(is_causal).toBool() && argument(dropout).toDouble() == 0;
  const bool has_heads = q.size(heads) == k.size(heads) ||
                         (argument(enable_gqa).toBool() && q.size(heads) % k.size(heads) == 0);
  return is_plain && has_heads && q.size(0) == k.size(0) && q.numel() > 0 &&
         q.size(positions) * mesh_of(k)->size(*dim) <= k.size(positions);
}

void attend_to_parts(Stack* stack) {
  const auto argument = [&](Argument i) -> c10::IValue& { return torch::jit::peek(*stack, i, n); };
  const at::Tensor q = argument(query).toTensor();
  static const auto part = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("redco::_attention_part", "")
                               .typed<std::tuple<at::Tensor, at::Tensor>(
                                   const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                   const std::optional<at::Tensor>&, double)>();
  const double by =
      argument(scale).isNone() ? 1 / std::sqrt(double(q.size(3))) : argument(scale).toDouble();
  const at::Tensor y =
      std::get<0>(part.call(q, argument(key).toTensor(), argument(value).toTensor(),
                            argument(mask).toOptional<at::Tensor>(), by))
          .to(q.scalar_type());
  torch::jit::drop(*stack, n);
  stack->emplace_back(y);
}

}  // namespace

void context_attention(const c10::OperatorHandle& op, Stack* stack) {
  const auto argument = [&](Argument i) -> c10::IValue& { return torch::jit::peek(*stack, i, n); };
  if (has_few_queries(*stack)) return attend_to_parts(stack);
  const at::Tensor q = argument(query).toTensor();
  const std::optional<Mesh::Dim> dim = dim_over_positions(q);
  if (!dim) return call_composite(op, stack);
  const at::Tensor k = argument(key).toTensor();
  const auto exchanged =
      exchanged_by_heads(q, k, argument(value).toTensor(), *dim, argument(enable_gqa).toBool());
  if (!exchanged) {
    if (argument(is_causal).toBool()) {
      argument(mask) = causal_mask(q, k, *dim);
      argument(is_causal) = false;
    }
    return call_composite(op, stack);
  }
  argument(query) = exchanged->query;
  argument(key) = exchanged->key;
  argument(value) = exchanged->value;
  if (argument(mask).isTensor()) argument(mask) = whole_mask(argument(mask).toTensor(), *dim);
  argument(enable_gqa) = q.size(heads) != exchanged->key.size(heads);
  call_composite(op, stack);
  stack->back() = exchanged->back(stack->back().toTensor());
}

void context_segment_attention(const c10::OperatorHandle& op, Stack* stack) {
  constexpr size_t segment_ids = 3, n = 6;  // after query, key and value
  const auto argument = [&](size_t i) -> c10::IValue& { return torch::jit::peek(*stack, i, n); };
  const at::Tensor q = argument(query).toTensor();
  const std::optional<Mesh::Dim> dim = dim_over_positions(q);
  if (!dim) return call_composite(op, stack);
  if (argument(segment_ids).isTensor())
    argument(segment_ids) = whole_mask(argument(segment_ids).toTensor(), *dim);
  const auto exchanged =
      exchanged_by_heads(q, argument(key).toTensor(), argument(value).toTensor(), *dim, true);
  // If the heads cannot be divided, the rule gathers the positions.
  if (!exchanged) return call_composite(op, stack);
  argument(query) = exchanged->query;
  argument(key) = exchanged->key;
  argument(value) = exchanged->value;
  call_composite(op, stack);
  stack->back() = exchanged->back(stack->back().toTensor());
}

}  // namespace redco::sharding
