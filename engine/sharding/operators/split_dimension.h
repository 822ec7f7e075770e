// Helpers for rules over split dimensions.

#pragma once

#include "../call/call_plan.h"

namespace redco::sharding {

/// Leaves the dimensions of `factor` whole if a tensor is split along it in blocks: then a rank's
/// elements are not one range, and own_span() has no answer.
void refuse_blocks(const Call& call, Factors& factors, int64_t factor);

/// Whether a tensor is a partial sum. A partial source that is added to a tensor that is not one is
/// reduced first: it is often smaller.
bool is_sum(const TensorArgument& argument);

/// The range of a dimension of logical `size` that this rank holds. Requires that it is one range.
Span own_span(int64_t size, const Placements& placements, int64_t dim, const Mesh& mesh);

/// For each element of an index: whether another rank holds it.
at::Tensor is_outside(const at::Tensor& index, const Span& own);

/// Throws if an index is out of range, as the operator does on a whole dimension. On a GPU, where
/// the check would stall, such an index reads a zero and writes nothing.
void check_range(const Operator& op, const at::Tensor& index, int64_t size);

/// A copy with one more element, a zero, in the split dimension `dim`: writes for other ranks go
/// there. Other dimensions stay expanded, because a write to one of their elements writes all.
at::Tensor with_one_more(const at::Tensor& tensor, int64_t dim);

/// Ends a write to such a copy of `self`: `stack` gets what the operator returns, where `result` is
/// the copy without the extra elements.
void return_written(const Operator& op, const at::Tensor& self, const at::Tensor& result,
                    torch::jit::Stack& stack);

/// Whether a single process accumulates this type in a wider one (at::toOpMathType) and rounds
/// once. Reductions over ranks must use that type too.
bool is_narrow(at::ScalarType type);

/// Converts to the accumulation type.
at::Tensor widened(const at::Tensor& x);

/// Reduces in place over all ranks that split a dimension.
at::Tensor all_reduced(at::Tensor tensor, const MeshDims& over, const Mesh& mesh, ReduceOp op);

/// Gathers each rank's log(sum(exp(x))) over its part of a split dimension, -inf for an empty part,
/// and returns that over the whole dimension. It is NaN if an element is infinite, as in a softmax,
/// which subtracts the maximum first.
at::Tensor normalizer_over(at::Tensor normalizer, const MeshDims& over, const Mesh& mesh);

/// log(sum(exp(x))) over a split dimension, in the accumulation type, with the dimension kept.
at::Tensor softmax_normalizer(const at::Tensor& x, int64_t dim, const MeshDims& over,
                              const Mesh& mesh);

}  // namespace redco::sharding
