// Views that take every so many elements of memory: diagonals, windows, and any strides.

#include "rules.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

namespace redco {

namespace {

std::optional<Plan> diagonal(const Call& call) {
  int64_t n_dims = call.tensors[0].tensor.dim();
  int64_t a = call.dims("dim1", n_dims)->front(), b = call.dims("dim2", n_dims)->front();
  Letters own = letters(n_dims), result;
  for (int64_t dim = 0; dim < n_dims; ++dim)
    if (dim == a || dim == b)
      own[size_t(dim)] = -1;
    else
      result.push_back(int8_t(dim));
  result.push_back(-1);
  return view_by_factors(call, {{own}, {result}});
}

std::optional<Plan> unfold(const Call& call) {
  int64_t n_dims = call.tensors[0].tensor.dim();
  if (n_dims == 0) return std::nullopt;
  Letters own = letters(n_dims);
  own[size_t(call.dims("dimension", n_dims)->front())] = -1;
  Letters result = own;
  result.push_back(-1);
  return view_by_factors(call, {{own}, {result}});
}

// Of a whole tensor laid out as the logical one is.
Plan gathered_as_strided(const Call& call) {
  Plan plan = gathered_plan(call);
  const at::Tensor& tensor = call.tensors[0].tensor;
  int64_t extent = tensor.storage_offset() + 1;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim)
    extent += (tensor.size(dim) - 1) * tensor.stride(dim);
  plan.run = [extent, sizes = tensor.sizes().vec(), strides = tensor.strides().vec(),
              offset = tensor.storage_offset()](const Operator& op, torch::jit::Stack& stack,
                                                const Mesh&) {
    at::Tensor whole = stack[0].toTensor();
    at::Tensor memory = at::zeros({extent}, whole.options());
    memory.as_strided(sizes, strides, offset).copy_(whole);
    stack[0] = memory;
    if (stack[3].isNone()) stack[3] = offset;
    op.handle.callBoxed(&stack);
  };
  return plan;
}

// The strides and the offset are those of the logical tensor. They are translated where each
// dimension of the result is a range of one dimension of the tensor and the others are selected
// from: which it is, the strides say.
std::optional<Plan> as_ranges(const Call& call) {
  const TensorArgument& argument = call.tensors[0];
  std::vector<int64_t> sizes = call.find("size")->toIntVector();
  std::vector<int64_t> strides = call.find("stride")->toIntVector();
  int64_t offset = call.integer("storage_offset", argument.tensor.storage_offset()) -
                   argument.tensor.storage_offset();
  if (offset < 0) return std::nullopt;
  auto n_dims = size_t(argument.tensor.dim());
  // Where in the tensor the result begins, from the outermost dimension inwards.
  std::vector<size_t> order;
  for (size_t dim = 0; dim < n_dims; ++dim) order.push_back(dim);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return argument.tensor.stride(int64_t(a)) > argument.tensor.stride(int64_t(b));
  });
  std::vector<int64_t> begin(n_dims, 0), length(n_dims, 1);
  for (size_t dim : order) {
    int64_t stride = argument.tensor.stride(int64_t(dim));
    if (stride == 0 || argument.sizes()[dim] == 1) continue;
    begin[dim] = offset / stride;
    offset %= stride;
    if (begin[dim] >= argument.sizes()[dim]) return std::nullopt;
  }
  if (offset != 0) return std::nullopt;
  Letters own = letters(int64_t(n_dims)), result(sizes.size(), int8_t(-1));
  std::vector<int64_t> taken(sizes.size(), -1);  // the dimension of the tensor, or -1: one element
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 1) continue;
    for (size_t dim = 0; dim < n_dims; ++dim)
      if (length[dim] == 1 && argument.sizes()[dim] > 1 &&
          argument.tensor.stride(int64_t(dim)) == strides[i]) {
        taken[i] = int64_t(dim);
        break;
      }
    if (taken[i] < 0) return std::nullopt;
    auto dim = size_t(taken[i]);
    length[dim] = sizes[i];
    if (begin[dim] + length[dim] > argument.sizes()[dim]) return std::nullopt;
  }
  for (size_t dim = 0; dim < n_dims; ++dim)
    if (length[dim] != argument.sizes()[dim]) own[dim] = -1;
  for (size_t i = 0; i < sizes.size(); ++i)
    if (taken[i] >= 0) result[i] = own[size_t(taken[i])];
  std::optional<Plan> plan = view_by_factors(call, {{own}, {result}});
  plan->run = [=](const Operator&, torch::jit::Stack& stack, const Mesh&) {
    at::Tensor local = stack[0].toTensor();
    for (size_t dim = 0; dim < n_dims; ++dim)
      if (own[dim] < 0) local = local.narrow(int64_t(dim), begin[dim], length[dim]);
    std::vector<int64_t> local_sizes, local_strides;
    for (int64_t dim : taken) {
      local_sizes.push_back(dim < 0 ? 1 : local.size(dim));
      local_strides.push_back(dim < 0 ? 1 : local.stride(dim));
    }
    stack = {local.as_strided(local_sizes, local_strides, local.storage_offset())};
  };
  return plan;
}

std::optional<Plan> as_strided(const Call& call) {
  if (call.tensors.size() != 1 || call.tensors[0].tensor.numel() == 0) return std::nullopt;
  std::optional<Plan> plan = as_ranges(call);
  return plan ? plan : gathered_as_strided(call);
}

}  // namespace

const RuleTable& strided_view_rules() {
  static const RuleTable table = {
      {"aten::diagonal", diagonal},
      {"aten::unfold", unfold},
      {"aten::as_strided", as_strided},
  };
  return table;
}

}  // namespace redco
