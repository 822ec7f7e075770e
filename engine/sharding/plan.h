#pragma once

#include "sharded_tensor.h"

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
struct Plan;

/// Works out how a call runs on parts. Nothing, where it cannot: then the arguments are gathered.
using Rule = std::function<std::optional<Plan>(const Call&)>;

/// The floating-point operations of a call with these arguments.
using FlopFormula = double (*)(const c10::ArrayRef<const c10::IValue>&);

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
  bool is_view = false;      ///< its results share memory with its argument; the schema is silent
  bool keys_floats = false;  ///< its rule reads floating-point arguments
  std::vector<std::string> written = {};  ///< written arguments that the schema does not mark
  std::string scratch = {};               ///< a written argument that nobody reads after the call
  FlopFormula flops = nullptr;            ///< null: not counted
};

/// Facts about an operator, from its schema and its row.
struct Operator {
  c10::OperatorHandle handle;
  const OperatorFacts& facts;
  std::string name;  ///< "aten::add": without overload and without the underscore of in-place
  bool is_inplace_view = false;       ///< it changes the sizes of its first argument
  bool is_view = false;               ///< its results share the memory of its first argument
  std::vector<bool> is_keyed = {};    ///< by argument: whether its value takes part in the plan
  std::vector<bool> is_written = {};  ///< by argument
  std::vector<int> returned = {};     ///< by result: the written argument it is, or -1
  int generator = -1;                 ///< the argument that is one, or -1

  const c10::FunctionSchema& schema() const { return handle.schema(); }
};

const Operator& known_operator(const c10::OperatorHandle& handle);

/// A defined tensor among the arguments of a call.
struct TensorArgument {
  size_t argument;
  int64_t element;  ///< its place in a list, or -1
  at::Tensor tensor;
  ShardedTensorImpl* impl;  ///< null: a plain tensor, which counts as replicated
  Placements placements;
  bool is_written;
  int64_t
      first;  ///< its place among the call's tensors, or that of the same tensor given before it
  at::Tensor stored = {};  ///< the parameter, if `tensor` is what its store gathered

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
  std::shared_ptr<const Mesh> mesh;

  /// The place of an argument, or -1.
  int index_of(std::string_view name) const;
  /// The value of a named argument; null where the overload has none of that name.
  const c10::IValue* find(std::string_view name) const;
  int64_t integer(std::string_view name, int64_t otherwise) const;
  bool boolean(std::string_view name, bool otherwise) const;
  /// Dimensions by name, wrapped to 0 .. n_dims - 1; an integer counts as a list of one. Nothing
  /// where the argument is missing or none.
  std::optional<std::vector<int64_t>> dims(std::string_view name, int64_t n_dims) const;
  /// The place among `tensors` of the tensor that is this argument, or -1.
  int tensor_of(std::string_view name) const;

  /// Arguments whose value was asked for, by bit: plans may depend on those that are keyed alone.
  mutable uint64_t read = 0;
};

/// Puts others in the place of a call's tensors, one for each, into its arguments.
void set_tensors(const Call& call, const std::vector<at::Tensor>& tensors,
                 torch::jit::Stack& arguments);

/// How one result lies.
struct OutputPlan {
  Placements placements;
  /// Logical sizes; -1 stands for the local size. Empty: all are the local ones.
  Sizes sizes;
  /// That of one process' result, where it is known before the call.
  std::optional<Geometry> geometry;
  /// Set if the geometry is not known and the memory order of the parts may differ between
  /// processes: a result of these sizes has this memory order; others are row-major.
  std::optional<Geometry> first = std::nullopt;
};

/// How a call runs on the parts: where its arguments are brought, what is called, how the results
/// lie.
struct Plan {
  std::vector<Placements> inputs;   ///< of the call's tensors
  std::vector<OutputPlan> outputs;  ///< of the tensors it returns, lists taken apart
  /// Arguments that differ for the local call, such as the sizes of a view.
  std::vector<std::pair<size_t, c10::IValue>> arguments;
  /// Runs in place of the operator, where it alone will not do. The stack holds the local
  /// arguments and takes the local results. `mesh` outlives the call.
  std::function<void(const Operator&, torch::jit::Stack&, const Mesh&)> run;
  bool is_gathered = false;  ///< there was no better way: counted
};

/// The place of a factor in each dimension of a tensor; -1: none, the dimension is whole.
using Letters = c10::SmallVector<int8_t, 6>;

/// An operator on tensors as in einsum: which dimensions are one and the same. A factor that the
/// results lack is reduced over.
struct Factors {
  std::vector<Letters> inputs;   ///< of the call's tensors
  std::vector<Letters> outputs;  ///< of the returned tensors
  uint64_t whole = 0;            ///< factors that must not be split, by bit
  uint64_t added = 0;            ///< inputs, by bit, that are added to what is summed over a factor
  ReduceOp reduction = ReduceOp::sum;
  /// Sets of inputs, by bit, in which the operator is linear: those may be partial sums together.
  std::vector<uint64_t> linear = {};
  bool only_moves = false;  ///< values are moved, not changed: partial maxima pass too
};

/// The bytes of an even part. Not those of this process' own: every process must choose alike.
double part_bytes(const TensorArgument& argument, const Mesh& mesh);

/// The cheapest way to split an operator's factors, given where its arguments lie.
Plan plan_by_factors(const Call& call, const Factors& factors);

/// The plan of a call, made when the first like it is met.
const Plan& plan_for(const Call& call);

/// All arguments whole on every process.
Plan gathered_plan(const Call& call);

/// The row of an operator of this name ("aten::mm"), or an empty one.
const OperatorFacts& find_facts(const std::string& name, const c10::OperatorHandle& handle);

/// The formula of the operator with this name, or null.
FlopFormula find_flops(std::string_view name);

}  // namespace redco::sharding
