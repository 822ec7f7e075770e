// Rules for operators that work along some dimensions. These dimensions must not be split, except
// for cumsum; all others may be.

#include "rules.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace redco::sharding {

bool works_on_terms(const Call& call, bool only_moves) {
  at::ScalarType type = call.tensors[0].tensor.scalar_type();
  const c10::IValue* dtype = call.find("dtype");
  if (dtype && !dtype->isNone() && dtype->toScalarType() != type) return false;
  for (const TensorArgument& argument : call.tensors)
    if (argument.tensor.scalar_type() != type) return false;
  return only_moves || (!is_narrow(type) && !at::isIntegralType(type, /*includeBool=*/true));
}

namespace {

enum class Result {
  same,     // like the arguments, but dimensions that are worked along may change in length
  reduced,  // the dimensions that are worked along are dropped, or kept with size 1
};

enum class Sums { are_reduced, pass, pass_as_maxima_do };

struct DimOperator {
  const char* name;
  const char* dims;  // the argument that names the dimensions; none or an empty list means all
  Result result;
  Sums sums = Sums::are_reduced;
};

constexpr DimOperator dim_operators[] = {
    {"aten::sort", "dim", Result::same},
    {"aten::topk", "dim", Result::same},
    {"aten::cumprod", "dim", Result::same},
    {"aten::logcumsumexp", "dim", Result::same},
    {"aten::_logcumsumexp", "dim", Result::same},
    {"aten::cummax", "dim", Result::same},
    {"aten::cummin", "dim", Result::same},
    {"aten::_cummax_helper", "dim", Result::same},
    {"aten::_cummin_helper", "dim", Result::same},
    {"aten::flip", "dims", Result::same, Sums::pass_as_maxima_do},
    {"aten::roll", "dims", Result::same, Sums::pass_as_maxima_do},
    {"aten::select_scatter", "dim", Result::same, Sums::pass_as_maxima_do},
    {"aten::slice_scatter", "dim", Result::same, Sums::pass_as_maxima_do},
    {"aten::kthvalue", "dim", Result::reduced},
    {"aten::median", "dim", Result::reduced},
    {"aten::nanmedian", "dim", Result::reduced},
    {"aten::mode", "dim", Result::reduced},
};

bool is_among(const std::optional<std::vector<int64_t>>& dims, int64_t dim) {
  return !dims || dims->empty() || std::find(dims->begin(), dims->end(), dim) != dims->end();
}

// An argument with one dimension less than the first argument lacks the dimension that is worked
// along.
std::optional<Letters> letters_without_own(int64_t n_dims, int64_t n_own_dims,
                                           const std::optional<std::vector<int64_t>>& own) {
  bool lacks_own = n_own_dims != n_dims;
  Letters result;
  for (int64_t dim = 0; dim < n_dims; ++dim) {
    bool is_own = is_among(own, dim);
    if (!is_own || !lacks_own) result.push_back(is_own ? int8_t(-1) : int8_t(dim));
  }
  if (int64_t(result.size()) != n_own_dims) return std::nullopt;
  return result;
}

std::optional<CallPlan> along(const Call& call, const DimOperator& row) {
  int64_t n_dims = call.tensors[0].tensor.dim();
  std::optional<std::vector<int64_t>> own = call.dims(row.dims, n_dims);
  Factors factors;
  for (const TensorArgument& argument : call.tensors) {
    std::optional<Letters> letters = letters_without_own(n_dims, argument.tensor.dim(), own);
    if (!letters) return std::nullopt;
    factors.inputs.push_back(*letters);
  }
  Letters result;
  for (int64_t dim = 0; dim < n_dims; ++dim) {
    bool is_own = is_among(own, dim);
    if (is_own && row.result == Result::reduced && !call.boolean("keepdim", false)) continue;
    result.push_back(is_own ? int8_t(-1) : int8_t(dim));
  }
  factors.outputs.assign(call.op.returned.size(), result);
  factors.only_moves = row.sums == Sums::pass_as_maxima_do;
  if (row.sums != Sums::are_reduced && works_on_terms(call, factors.only_moves))
    factors.linear = {(uint64_t{1} << call.tensors.size()) - 1};
  return plan_by_factors(call, factors);
}

// Fourier transforms are linear. Their kernels reject empty batches.
std::optional<CallPlan> fourier_transform(const Call& call) {
  const TensorArgument& x = call.tensors[0];
  if (call.tensors.size() > 1) return std::nullopt;  // out
  const int64_t n_dims = x.tensor.dim();
  Factors factors{{letters(n_dims)}, {}};
  const std::vector<int64_t> worked = *call.dims("dim", n_dims);
  for (int64_t dim : worked) factors.inputs[0][size_t(dim)] = -1;
  factors.outputs = factors.inputs;
  for (int8_t dim : factors.inputs[0])
    if (dim >= 0 && !all_ranks_hold(call, factors, dim, x.sizes()[size_t(dim)]))
      factors.whole |= uint64_t{1} << dim;
  if (!may_overflow(x.tensor.scalar_type())) factors.linear = {1};
  return plan_by_factors(call, factors);
}

// Adds to each part's sums the total of the parts before it.
void cumsum_over_parts(torch::jit::Stack& stack, int64_t dim, const MeshDims& over,
                       const Mesh& mesh) {
  const at::Tensor x = stack[0].toTensor();
  const bool counts = at::isIntegralType(x.scalar_type(), /*includeBool=*/true);
  const at::ScalarType type = !stack[2].isNone() ? stack[2].toScalarType()
                              : counts           ? at::kLong
                                                 : x.scalar_type();
  at::Tensor sums = at::cumsum(x.to(type), dim, at::toOpMathType(type));
  std::vector<int64_t> one = sums.sizes().vec();
  one[size_t(dim)] = 1;
  at::Tensor total = sums.size(dim) > 0 ? sums.narrow(dim, -1, 1) : at::zeros(one, sums.options());
  for (size_t i = over.size(); i-- > 0;) {  // each dim splits the parts of the dims before
    Group& group = mesh.group(over[i]);
    const at::Tensor totals = group.all_gather(total.contiguous());
    sums = sums + totals.narrow(0, 0, group.rank()).sum(0);
    total = totals.sum(0);
  }
  stack = {sums.to(type)};
}

std::optional<CallPlan> cumsum(const Call& call) {
  const TensorArgument& x = call.tensors[0];
  const int64_t n_dims = x.tensor.dim();
  if (call.tensors.size() > 1 || x.is_written || n_dims == 0)
    return along(call, {"", "dim", Result::same, Sums::pass});
  const int64_t dim = call.dims("dim", n_dims)->front();
  Factors factors{{letters(n_dims)}, {letters(n_dims)}};
  refuse_blocks(call, factors, dim);
  if (works_on_terms(call, /*only_moves=*/false)) factors.linear = {1};
  CallPlan plan = plan_by_factors(call, factors);
  const MeshDims over = splitting(plan.inputs[0], dim);
  if (!over.empty())
    plan.run = [=](const Operator&, torch::jit::Stack& stack, const Mesh& mesh) {
      cumsum_over_parts(stack, dim, over, mesh);
    };
  return plan;
}

}  // namespace

std::optional<CallPlan> reduced_along_dim(const Call& call) {
  return along(call, {"", "dim", Result::reduced});
}

const RuleTable& own_dimension_rules() {
  static const RuleTable table = [] {
    RuleTable table;
    for (const DimOperator& row : dim_operators)
      table[row.name] = [&row](const Call& call) { return along(call, row); };
    table["aten::cumsum"] = cumsum;
    for (const char* name : {"aten::_fft_c2c", "aten::_fft_c2r", "aten::_fft_r2c"})
      table[name] = fourier_transform;
    return table;
  }();
  return table;
}

}  // namespace redco::sharding
