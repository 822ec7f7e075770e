// Plans: how an operator call runs on the local parts of sharded tensors.

#pragma once

#include "../tensor/sharded_tensor.h"

#include <redco/product_kind.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <concepts>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redco::sharding {

class Call;
struct CallPlan;

/// Returns how a call runs on local tensors, or nullopt if it cannot: then its arguments are
/// gathered.
using Rule = std::function<std::optional<CallPlan>(const Call&)>;

/// The floating-point operations of a call with these arguments.
using FlopFormula = double (*)(const c10::ArrayRef<const c10::IValue>&);

/// The cost of an operator on a GPU besides its FLOPs, and reading arguments and writing results
/// once.
struct GpuCost {
  /// Bytes of a call, from its arguments and results.
  using Bytes = int64_t (*)(c10::ArrayRef<c10::IValue> arguments,
                            c10::ArrayRef<c10::IValue> results);
  double passes = 1;          ///< of the time that the memory needs for reading and writing once
  double starts = 1;          ///< of the host's time to start most operators
  Bytes workspace = nullptr;  ///< memory that its kernels need while they run; null: none
  Bytes inside = nullptr;     ///< read and written between its parts; null: none. No results given
};

/// A row of the operator tables in operators/: the facts about an operator that its schema does not
/// give. An operator is described there and nowhere else.
struct OperatorFacts {
  OperatorFacts() = default;
  template <class F>
  requires std::constructible_from<Rule, F> OperatorFacts(F rule) : rule(std::move(rule)) {}

  Rule rule;                    ///< may be empty
  bool is_product = false;      ///< it multiplies by a weight, which can be split by outputs
  bool passes_through = false;  ///< its result has its argument's values, perhaps of another type
  bool regroups = false;        ///< it splits or merges dimensions of its argument
  /// Rows of a batch of one may be positions of several examples, as einsum joins them.
  bool joins_rows = false;
  bool is_view = false;  ///< its results share memory with its argument; the schema is silent
  /// Whether the shape of a call's result is known although its tags say that it depends on values;
  /// null: it is not.
  bool (*has_known_shape)(const Call&) = nullptr;
  bool keys_floats = false;  ///< its rule reads floating-point arguments
  /// Returns numbers that the plan depends on besides its key; null: none.
  std::vector<int64_t> (*remembers)(const Call&) = nullptr;
  std::vector<std::string> written = {};   ///< written arguments that the schema does not mark
  std::string scratch = {};                ///< a written argument that nobody reads after the call
  FlopFormula flops = nullptr;             ///< null: not counted
  ProductKind kind = ProductKind::matmul;  ///< of an operator with flops
  bool has_heads = false;                  ///< it needs each attention head whole
  bool looks_up_rows = false;              ///< of its first argument
  bool normalizes = false;                 ///< each row, of which it needs sums alone
  GpuCost gpu = {};
};

/// How an operator treats rows that are at the ranks of their experts (expert_calls.h).
enum class AtExperts : uint8_t {
  none,                  ///< it needs them back
  product,               ///< (x, numbers, weights): a number chooses a row's weight
  gradients_of_weights,  ///< (a, b, numbers, weights), of that
  table,                 ///< (table, numbers): a number chooses a row of a table
  gradient_of_table,     ///< (gradient, numbers)
  pointwise,             ///< as everywhere
  addition,              ///< pointwise, and of sums over choices too
  sum,                   ///< as along_dim, and over the choices
  view,                  ///< of the dimensions behind those of rows and choices
  along_dim,             ///< along a dimension `dim` behind these
  unbind,                ///< the same, and a stack of experts' weights
  stack,                 ///< the same
};

/// Facts about an operator, from its schema and its row.
struct Operator {
  c10::OperatorHandle handle;
  const OperatorFacts& facts;
  std::string name;  ///< "aten::add": without overload and without the underscore of in-place
  bool is_inplace_view = false;       ///< it changes the sizes of its first argument
  bool is_view = false;               ///< its results share the memory of its first argument
  bool has_state = false;             ///< it saves or reads an opaque state for backward
  std::vector<bool> is_keyed = {};    ///< by argument: whether its value takes part in the plan
  std::vector<bool> is_written = {};  ///< by argument
  std::vector<int> returned = {};     ///< by result: the written argument it is, or -1
  int generator = -1;                 ///< the argument that is one, or -1
  AtExperts at_experts = AtExperts::none;

  const c10::FunctionSchema& schema() const { return handle.schema(); }
};

const Operator& known_operator(const c10::OperatorHandle& handle);

/// A defined tensor among the arguments of a call.
struct TensorArgument {
  size_t argument;
  int64_t element;  ///< its index in a list, or -1
  at::Tensor tensor;
  ShardedTensorImpl* impl;  ///< null for a plain tensor, which counts as replicated
  Placements placements;
  bool is_written;
  int64_t first;  ///< index in the call's tensors of the first argument with the same elements
  at::Tensor stored = {};  ///< the stored parameter, if `tensor` is its gathered copy

  at::IntArrayRef sizes() const { return tensor.sizes(); }
  const at::Tensor& local() const { return impl ? impl->local() : tensor; }
};

/// One call of an operator with a sharded tensor among its arguments.
class Call {
 public:
  Call(const Operator& op, const torch::jit::Stack& stack);

  const Operator& op;
  c10::ArrayRef<c10::IValue> arguments;
  c10::SmallVector<TensorArgument, 6> tensors;
  std::shared_ptr<const Mesh> mesh;  ///< of a stage if any of the tensors is

  /// The index of an argument, or -1.
  int index_of(std::string_view name) const;
  /// The value of a named argument; null if the overload does not have it.
  const c10::IValue* find(std::string_view name) const;
  int64_t integer(std::string_view name, int64_t otherwise) const;
  bool boolean(std::string_view name, bool otherwise) const;
  /// The dimensions in a named argument, wrapped to 0 .. n_dims - 1; an integer counts as a list of
  /// one. Nullopt if the argument is missing or None.
  std::optional<std::vector<int64_t>> dims(std::string_view name, int64_t n_dims) const;
  /// The index in `tensors` of a named argument, or -1.
  int tensor_of(std::string_view name) const;

  /// Whether it draws random numbers.
  bool draws_numbers() const;

  /// Bit mask of the arguments whose value was read. A plan may depend on keyed arguments only.
  mutable uint64_t read = 0;
};

/// Replaces the call's tensors in `arguments` by `tensors`, one for each.
void set_tensors(const Call& call, const std::vector<at::Tensor>& tensors,
                 torch::jit::Stack& arguments);

/// The layout of one result.
struct OutputPlan {
  Placements placements;
  /// Logical sizes; -1 takes the local size. Empty: all sizes are the local ones.
  Sizes sizes;
  /// The geometry on a single process, if known before the call.
  std::optional<Geometry> geometry;
  /// Set if the geometry is not known and the memory order of the local tensors may differ between
  /// processes: a result of these sizes gets this memory order, any other is row-major.
  std::optional<Geometry> first = std::nullopt;
  /// The mesh dimension over which ranks exchanged elements of a view, which is a copy then.
  std::optional<Mesh::Dim> copied_over = std::nullopt;
};

/// How a call runs on local tensors: the placements of its arguments, the local call, and the
/// layout of its results.
struct CallPlan {
  std::vector<Placements> inputs;   ///< of the call's tensors
  std::vector<OutputPlan> outputs;  ///< of the returned tensors, lists flattened
  /// Arguments that differ in the local call, such as the sizes of a view.
  std::vector<std::pair<size_t, c10::IValue>> arguments;
  /// Called instead of the operator if set, where the operator alone is not enough. The stack holds
  /// the local arguments and receives the local results. `mesh` outlives the call.
  std::function<void(const Operator&, torch::jit::Stack&, const Mesh&)> run;
  bool is_gathered = false;  ///< no rule applied: the arguments are gathered, which is counted
};

/// The factor of each dimension of a tensor; -1 for a dimension without one, which stays whole.
using Letters = c10::SmallVector<int8_t, 6>;

/// The dimensions of an operator as in einsum: dimensions with the same letter are one factor. A
/// factor that is missing from the results is reduced over.
struct Factors {
  std::vector<Letters> inputs;   ///< of the call's tensors
  std::vector<Letters> outputs;  ///< of the returned tensors
  uint64_t whole = 0;            ///< bit mask of factors that must not be split
  uint64_t added = 0;            ///< bit mask of inputs that are added to the sum over a factor
  ReduceOp reduction = ReduceOp::sum;
  /// Bit masks of inputs in which the operator is jointly linear: these may be partial sums
  /// together.
  std::vector<uint64_t> linear = {};
  bool only_moves = false;  ///< values are moved, not changed: partial maxima may pass too
};

/// The bytes of an even part. Not the bytes of the local part, since every process must choose
/// alike.
double part_bytes(const TensorArgument& argument, const Mesh& mesh);

/// The cheapest way to split an operator's factors, given the placements of its arguments.
CallPlan plan_by_factors(const Call& call, const Factors& factors);

/// Returns the cached plan of a call, or makes it.
const CallPlan& plan_for(const Call& call);

/// A plan that gathers all arguments.
CallPlan gathered_plan(const Call& call);

/// The row of an operator of this name ("aten::mm"), or an empty one.
const OperatorFacts& find_facts(const std::string& name, const c10::OperatorHandle& handle);

/// The formula of the operator with this name, or null.
FlopFormula find_flops(std::string_view name);

}  // namespace redco::sharding
