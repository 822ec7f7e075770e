#pragma once

#include <redco/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace redco::mesh {

/// The bytes that a process sends with rings and pairwise exchanges, the minimum. A small
/// all-reduce may send more (is_exchanged). `bytes`: of the tensor that is sent.
int64_t bytes_sent(Group::Kind kind, int64_t bytes, int64_t n_ranks);

/// Whether the backends that exchange tensors (Backend::exchange) also do so to reduce this one:
/// each rank gets all of it and adds. It sends as much as a ring or more, but takes as long as one
/// message instead of several. Measured on one host, as shares of the ring's time: 64 KiB to one
/// other process 0.7 and to each of three 0.4, 512 KiB 0.8 and 0.7, 1 MiB 1.5.
bool is_exchanged(const at::Tensor& tensor, int64_t n_ranks);

/// Whether a sum of 16-bit floats takes two steps: each rank gets its part of all tensors, adds in
/// 32 bits, and sends the sum, in 16 bits, to all. A backend adds in the type that it sends: it
/// would have to send 32 bits. Measured with four processes of one host, as shares of the time of a
/// ring in 32 bits: 640 KiB 0.7, 1 MiB 0.6, 4 MiB 0.5. A small tensor takes longer in two steps.
bool is_summed_by_parts(const at::Tensor& tensor, ReduceOp op, int64_t n_ranks);
/// The tensor as one row for each rank: a view, or a copy with zeros at its end.
at::Tensor to_parts(const at::Tensor& tensor, int64_t n_ranks);
/// Writes rows of `to_parts` back, unless they are a view.
void put_parts_back(const at::Tensor& parts, const at::Tensor& given);

/// A tensor in a form that backends can reduce.
struct Reduced {
  at::Tensor tensor;  ///< may share the memory of the given one
  ReduceOp op;        ///< by which backends reduce it
  bool is_ordered;    ///< floats as integers in the same order

  /// Writes the result to the given tensor.
  void put_back(const at::Tensor& given) const;
};
Reduced reduced_form(const at::Tensor& tensor, ReduceOp op, int64_t n_ranks);

/// Whether a reduce-scatter may be left to a backend that has one. Otherwise each rank reduces the
/// rows that it receives, which takes as many bytes; this keeps NaNs and rounds 16-bit floats once.
bool is_scattered_exactly(const at::Tensor& tensor, ReduceOp op);

/// Reduces tensors of one size, in their order: with the same bits on all processes. 16-bit floats
/// are summed in 32 bits and rounded once.
at::Tensor reduce(at::TensorList rows, ReduceOp op);

}  // namespace redco::mesh
