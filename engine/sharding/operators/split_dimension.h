#pragma once

#include "../plan.h"

namespace redco::sharding {

/// Whether parts of a dimension do not follow one another, so that a rank's elements are no range.
bool is_in_blocks(const TensorArgument& argument, int64_t dim);

/// Whether a tensor is still to be summed. What is added to one that is not is summed first: it is
/// often smaller.
bool is_sum(const TensorArgument& argument);

/// The elements of a dimension of logical `size` that this rank holds, where they are a range.
Span own_span(int64_t size, const Placements& placements, int64_t dim, const Mesh& mesh);

/// Whether another rank holds the element, for each of an index.
at::Tensor is_outside(const at::Tensor& index, const Span& own);

/// An index that no rank holds must fail, as it does where the dimension is whole. On a GPU, where
/// looking would stall, it reads as a zero and writes nothing.
void check_range(const Operator& op, const at::Tensor& index, int64_t size);

/// Whether one process adds numbers of this type up in a wider one, at::toOpMathType, and rounds
/// once: what ranks add up must be brought together in that too.
bool is_narrow(at::ScalarType type);

/// The same numbers in the type that they are added up in.
at::Tensor widened(const at::Tensor& x);

/// In place: the reduction over all ranks that split a dimension.
at::Tensor all_reduced(at::Tensor tensor, const MeshDims& over, const Mesh& mesh, ReduceOp op);

/// log(sum(exp(x))) over a dimension that ranks split, widened; the dimension stays, with one
/// element.
at::Tensor split_logsumexp(const at::Tensor& x, int64_t dim, const MeshDims& over,
                           const Mesh& mesh);

}  // namespace redco::sharding
