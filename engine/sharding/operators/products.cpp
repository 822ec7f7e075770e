// Rules for products, written as in einsum. "+" marks an argument that is added.

#include "flops.h"
#include "rules.h"

#include <algorithm>
#include <string>
#include <utility>

namespace redco::sharding {

namespace {

struct Row {
  const char* name;
  const char* factors;
  FlopFormula flops = nullptr;  // null: the kernel calls operators that are counted, or is small
};

constexpr Row rows[] = {
    {"aten::mm", "ik,kj->ij", matrix_product_flops<0>},
    {"redco::linear_few_rows", "ik,jk->ij"},
    {"redco::scaled_product", "ik,kj,,->ij", matrix_product_flops<0>},
    {"aten::bmm", "bik,bkj->bij", matrix_product_flops<0>},
    {"aten::addmm", "+ij,ik,kj->ij", matrix_product_flops<1>},
    {"aten::baddbmm", "+bij,bik,bkj->bij", matrix_product_flops<1>},
    {"aten::addbmm", "+ij,bik,bkj->ij"},
    {"aten::mv", "ik,k->i"},
    {"aten::addmv", "+i,ik,k->i"},
    {"aten::dot", "k,k->"},
    {"aten::vdot", "k,k->"},
    {"aten::addr", "+ij,i,j->ij"},
};

struct Term {
  std::string letters;
  bool is_added = false;
};

std::vector<Term> parse(const std::string& text) {
  std::vector<Term> terms(1);
  for (char c : text) {
    if (c == ',')
      terms.emplace_back();
    else if (c == '+')
      terms.back().is_added = true;
    else
      terms.back().letters += c;
  }
  return terms;
}

// Aligns letters at the right, as in broadcasting. A dimension of size 1 that is broadcast has no
// factor.
Letters letters_of(const Term& term, at::IntArrayRef sizes, const std::string& all,
                   const Sizes& factor_sizes) {
  Letters letters;
  size_t skipped = term.letters.size() - sizes.size();
  for (size_t i = 0; i < sizes.size(); ++i) {
    size_t factor = all.find(term.letters[skipped + i]);
    letters.push_back(sizes[i] == factor_sizes[factor] ? int8_t(factor) : int8_t(-1));
  }
  return letters;
}

// Under sequence parallelism activations are split by rows. If mp splits the other matrix in
// another way (a weight, or a gradient by features), that matrix stays split and the rows are
// gathered. Returns the matrix to gather: the one that is split along the summed dimension, else
// the first one; -1 if there is none. Einsum multiplies batches of one matrix.
int64_t matrix_to_gather(const Call& call, const Factors& factors) {
  c10::SmallVector<std::pair<int64_t, int8_t>, 2>
      split;  // matrices, and the factor that splits them
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const Placement& placement = call.tensors[i].placements[Mesh::mp];
    if (factors.added >> i & 1 || !placement.is_sharded()) continue;
    const at::IntArrayRef sizes = call.tensors[i].sizes();
    if (sizes.size() > 3 || (sizes.size() == 3 && sizes[0] != 1)) return -1;
    split.emplace_back(int64_t(i), factors.inputs[i][size_t(placement.dim)]);
  }
  if (split.size() != 2 || split[0].second == split[1].second) return -1;
  const Letters& result = factors.outputs[0];
  bool is_summed = std::find(result.begin(), result.end(), split[1].second) == result.end();
  return split[is_summed ? 1 : 0].first;
}

// A scalar product of 16-bit vectors: all-reduces in the accumulation type and rounds once.
std::optional<CallPlan> dot(const Call& call, const Factors& factors) {
  CallPlan plan = plan_by_factors(call, factors);
  MeshDims over = reduced_over(plan);
  if (over.empty()) return plan;
  plan.run = [over](const Operator& op, torch::jit::Stack& stack, const Mesh& mesh) {
    at::ScalarType type = stack[0].toTensor().scalar_type();
    for (c10::IValue& value : stack) value = widened(value.toTensor());
    op.handle.callBoxed(&stack);
    stack = {all_reduced(stack[0].toTensor(), over, mesh, ReduceOp::sum).to(type)};
  };
  return plan;
}

Rule product(const char* text) {
  std::string spec = text;
  size_t arrow = spec.find("->");
  std::vector<Term> inputs = parse(spec.substr(0, arrow));
  Term output{spec.substr(arrow + 2)};
  std::string all;
  for (const Term& term : inputs)
    for (char letter : term.letters)
      if (all.find(letter) == std::string::npos) all += letter;
  return [=](const Call& call) -> std::optional<CallPlan> {
    Sizes sizes(all.size(), 1);
    for (size_t i = 0; i < inputs.size(); ++i) {
      at::IntArrayRef own = call.tensors[i].sizes();
      if (own.size() > inputs[i].letters.size()) return std::nullopt;
      if (inputs[i].is_added) continue;
      for (size_t dim = 0; dim < own.size(); ++dim)
        sizes[all.find(inputs[i].letters[dim])] = own[dim];
    }
    Factors factors;
    uint64_t added = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      factors.inputs.push_back(letters_of(inputs[i], call.tensors[i].sizes(), all, sizes));
      if (inputs[i].is_added) added |= uint64_t{1} << i;
    }
    Letters result;
    for (char letter : output.letters) result.push_back(int8_t(all.find(letter)));
    factors.outputs.push_back(result);
    for (size_t i = inputs.size(); i < call.tensors.size(); ++i) {  // an `out` argument
      if (call.tensors[i].tensor.dim() != int64_t(result.size())) return std::nullopt;
      factors.inputs.push_back(result);
      added |= uint64_t{1} << i;  // an `out` argument has the layout of the result
    }
    factors.added = added;
    for (size_t i = 0; i < inputs.size(); ++i)
      if (!(added >> i & 1) && !may_overflow(call.tensors[i].tensor.scalar_type()))
        factors.linear.push_back(uint64_t{1} << i | added);
    if (result.empty() && call.tensors.size() == 2 &&
        is_narrow(call.tensors[0].tensor.scalar_type()))
      return dot(call, factors);
    int64_t rows = call.mesh->sequence_parallel() ? matrix_to_gather(call, factors) : -1;
    if (rows < 0) return plan_by_factors(call, factors);
    Call together = call;
    together.tensors[size_t(rows)].placements[Mesh::mp] = {};
    return plan_by_factors(together, factors);
  };
}

// Under sequence parallelism, gathers rows that mp splits if it also splits the columns of another
// tensor: then all ranks need all rows.
void gather_rows(Call& call) {
  auto splits = [](const TensorArgument& argument, bool rows) {
    const Placement& placement = argument.placements[Mesh::mp];
    return placement.is_sharded() && (placement.dim == 0) == rows;
  };
  bool any_columns = std::ranges::any_of(
      call.tensors, [&](const TensorArgument& argument) { return splits(argument, false); });
  if (!call.mesh->sequence_parallel() || !any_columns) return;
  for (TensorArgument& argument : call.tensors)
    if (splits(argument, true)) argument.placements[Mesh::mp] = {};
}

Letters row_letters(const TensorArgument& argument, int8_t last) {
  return argument.tensor.dim() == 2 ? Letters{0, last} : Letters{0, 1, last};
}

// redco::grouped_linear(x, numbers, weights, is_transposed). All weights get the layout of the
// first: there may be more weights than bits in a mask.
std::optional<CallPlan> grouped_linear(const Call& call) {
  enum : int8_t { row, choice, in, out };
  bool is_transposed = call.boolean("is_transposed", false);
  size_t n_weights = call.tensors.size() - 2;
  Call first = call;
  while (first.tensors.size() > 3) first.tensors.pop_back();
  Placement& weight = first.tensors[2].placements[Mesh::mp];
  // For gather_rows, makes a split of the weight's first dimension a split of columns.
  Placement kept = std::exchange(weight, weight.is_sharded() ? Placement::shard(1) : weight);
  gather_rows(first);
  weight = kept;
  Factors factors{{row_letters(call.tensors[0], in),
                   {row, choice},
                   is_transposed ? Letters{in, out} : Letters{out, in}},
                  {{row, choice, out}}};
  factors.whole = uint64_t{1} << choice;
  if (!may_overflow(call.tensors[0].tensor.scalar_type())) factors.linear = {1};
  CallPlan plan = plan_by_factors(first, factors);
  plan.inputs.resize(2 + n_weights, plan.inputs[2]);
  return plan;
}

// Counts one product with a weight for each number.
double grouped_linear_flops(const Inputs& inputs) {
  const at::Tensor weight = inputs[2].toTensorList().get(0);
  return 2 * sharding::product(sizes(inputs, 1)) * double(weight.numel());
}

double grouped_outer_flops(const Inputs& inputs) {
  return 2 * sharding::product(sizes(inputs, 2)) *
         double(sizes(inputs, 0).back() * sizes(inputs, 1).back());
}

// redco::grouped_outer(a, b, numbers, like)
std::optional<CallPlan> grouped_outer(const Call& call) {
  enum : int8_t { row, choice, left, right };
  constexpr size_t n_read = 3;  // only the shapes of `like` are read
  Call together = call;
  together.tensors.resize(n_read, call.tensors[0]);
  gather_rows(together);
  Factors factors{
      {row_letters(call.tensors[0], left), row_letters(call.tensors[1], right), {row, choice}}, {}};
  factors.outputs.assign(call.tensors.size() - n_read, {left, right});
  factors.whole = uint64_t{1} << choice;
  if (!may_overflow(call.tensors[0].tensor.scalar_type())) factors.linear = {1, 2};
  CallPlan plan = plan_by_factors(together, factors);
  for (size_t i = n_read; i < call.tensors.size(); ++i)
    plan.inputs.push_back(call.tensors[i].placements);
  return plan;
}

}  // namespace

const RuleTable& product_rules() {
  static const RuleTable table = [] {
    RuleTable table;
    for (const Row& row : rows) {
      OperatorFacts& facts = table[row.name] = product(row.factors);
      facts.is_product = true;
      facts.flops = row.flops;
    }
    table["aten::bmm"].joins_rows = true;
    table["redco::grouped_linear"] = grouped_linear;
    table["redco::grouped_linear"].is_product = true;
    table["redco::grouped_linear"].flops = grouped_linear_flops;
    table["redco::grouped_outer"] = grouped_outer;
    table["redco::grouped_outer"].flops = grouped_outer_flops;
    return table;
  }();
  return table;
}

}  // namespace redco::sharding
