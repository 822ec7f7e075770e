// Helpers for rules over split dimensions.

#include "split_dimension.h"

#include <redco/error.h>

#include <ATen/OpMathType.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/logsumexp.h>

#include <limits>

namespace redco::sharding {

void refuse_blocks(const Call& call, Factors& factors, int64_t factor) {
  for (size_t i = 0; i < call.tensors.size(); ++i)
    for (const Placement& placement : call.tensors[i].placements)
      if (placement.is_sharded() && placement.is_in_blocks() &&
          factors.inputs[i][size_t(placement.dim)] == factor)
        factors.whole |= uint64_t{1} << factor;
}

bool is_sum(const TensorArgument& argument) { return is_partial(argument.placements); }

Span own_span(int64_t size, const Placements& placements, int64_t dim, const Mesh& mesh) {
  Span own{0, size};
  for (Mesh::Dim mesh_dim : splitting(placements, dim)) {
    Span part =
        span_of(own.length(), placements[mesh_dim], mesh.size(mesh_dim), mesh.coordinate(mesh_dim));
    own = {own.begin + part.begin, own.begin + part.end};
  }
  return own;
}

at::Tensor is_outside(const at::Tensor& index, const Span& own) {
  return index.lt(own.begin).bitwise_or_(index.ge(own.end));
}

void check_range(const Operator& op, const at::Tensor& index, int64_t size) {
  if (!index.is_cpu() || index.numel() == 0) return;
  auto [low, high] = at::aminmax(index);
  int64_t first = low.item().toLong(), last = high.item().toLong();
  require(first >= 0 && last < size, op.name, ": index ", first < 0 ? first : last,
          " is out of range for a dimension of size ", size);
}

at::Tensor with_one_more(const at::Tensor& tensor, int64_t dim) {
  std::vector<int64_t> sizes = tensor.sizes().vec(), pad(size_t(2 * (tensor.dim() - dim)), 0);
  at::Tensor once = tensor;
  // An empty part may have any strides.
  for (int64_t d = 0; d < tensor.dim() && tensor.numel() > 0; ++d)
    if (d != dim && tensor.stride(d) == 0 && tensor.size(d) > 1) once = once.narrow(d, 0, 1);
  ++sizes[size_t(dim)];
  pad.back() = 1;
  return at::constant_pad_nd(once, pad).expand(sizes);
}

void return_written(const Operator& op, const at::Tensor& self, const at::Tensor& result,
                    torch::jit::Stack& stack) {
  bool is_inplace = op.returned[0] >= 0;
  if (is_inplace) overwrite(self, result);
  stack = {is_inplace ? self : result.contiguous()};
}

bool is_narrow(at::ScalarType type) { return at::toOpMathType(type) != type; }

at::Tensor widened(const at::Tensor& x) { return x.to(at::toOpMathType(x.scalar_type())); }

at::Tensor all_reduced(at::Tensor tensor, const MeshDims& over, const Mesh& mesh, ReduceOp op) {
  for (Mesh::Dim dim : over) tensor = mesh.group(dim).all_reduce(tensor.contiguous(), op);
  return tensor;
}

// Makes one all-gather of the ranks' results. For few ranks it sends no more bytes than an
// all-reduce of the maximum and another of the sum, with half the launches.
at::Tensor normalizer_over(at::Tensor normalizer, const MeshDims& over, const Mesh& mesh) {
  for (Mesh::Dim mesh_dim : over)
    normalizer = mesh.group(mesh_dim).all_gather(normalizer.contiguous()).logsumexp(0);
  return normalizer.masked_fill(normalizer.isposinf(), std::numeric_limits<double>::quiet_NaN());
}

at::Tensor softmax_normalizer(const at::Tensor& x, int64_t dim, const MeshDims& over,
                              const Mesh& mesh) {
  return normalizer_over(widened(x).logsumexp(dim, true), over, mesh);
}

}  // namespace redco::sharding
