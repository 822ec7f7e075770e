// The form in which tensors travel between processes.

#include "wire_form.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <vector>

namespace redco::mesh {

namespace {

// Maps the bits of floats to integers in the same order. The function is its own inverse.
at::Tensor to_integer_order(const at::Tensor& bits) {
  int64_t most = bits.scalar_type() == at::kInt ? INT32_MAX : INT64_MAX;
  return at::where(bits.lt(0), bits.bitwise_xor(most), bits);
}

// Converts floats to integers for max and min, because backends may drop NaNs when they compare
// floats. NaN becomes the integer that wins.
at::Tensor to_ordered(const at::Tensor& floats, ReduceOp op) {
  at::Tensor wide = floats.element_size() < 4 ? floats.to(at::kFloat) : floats;
  bool is_double = wide.scalar_type() == at::kDouble;
  int64_t most = is_double ? INT64_MAX : INT32_MAX;
  if (wide.is_meta()) return wide.view(is_double ? at::kLong : at::kInt);  // `where` needs values
  return to_integer_order(wide.view(is_double ? at::kLong : at::kInt))
      .masked_fill_(wide.isnan(), op == ReduceOp::max ? most : -most - 1);
}

at::Tensor from_ordered(const at::Tensor& ordered) {
  if (ordered.is_meta())
    return ordered.view(ordered.scalar_type() == at::kLong ? at::kDouble : at::kFloat);
  return to_integer_order(ordered).view(ordered.scalar_type() == at::kLong ? at::kDouble
                                                                           : at::kFloat);
}

// Adds rows one by one, so that all processes get the same bits on any CPU.
at::Tensor sum_of(at::TensorList rows) {
  const at::ScalarType type = rows[0].scalar_type();
  at::Tensor sum = rows[0].to(at::isReducedFloatingType(type) ? at::kFloat : type);
  sum = sum.add(rows[1]);
  for (const at::Tensor& row : rows.slice(2)) sum.add_(row);
  return sum.to(type);
}

}  // namespace

int64_t bytes_sent(Group::Kind kind, int64_t bytes, int64_t n_ranks) {
  switch (kind) {
    case Group::all_reduce_kind:
      return 2 * bytes * (n_ranks - 1) / n_ranks;
    case Group::all_gather_kind:
      return bytes * (n_ranks - 1);
    default:
      return bytes * (n_ranks - 1) / n_ranks;
  }
}

bool is_exchanged(const at::Tensor& tensor, int64_t n_ranks) {
  constexpr int64_t most = 768 << 10, most_of_all = 2 << 20;
  return int64_t(tensor.nbytes()) <= std::min(most, most_of_all / n_ranks);
}

bool is_summed_by_parts(const at::Tensor& tensor, ReduceOp op, int64_t n_ranks) {
  return at::isReducedFloatingType(tensor.scalar_type()) && op == ReduceOp::sum && n_ranks > 2 &&
         !is_exchanged(tensor, n_ranks);
}

at::Tensor to_parts(const at::Tensor& tensor, int64_t n_ranks) {
  const int64_t missing = (n_ranks - tensor.numel() % n_ranks) % n_ranks;
  at::Tensor flat = tensor.reshape({-1});
  if (missing > 0) flat = at::constant_pad_nd(flat, {0, missing});
  return flat.view({n_ranks, -1});
}

void put_parts_back(const at::Tensor& parts, const at::Tensor& given) {
  if (!parts.is_alias_of(given))
    given.copy_(parts.view({-1}).narrow(0, 0, given.numel()).view_as(given));
}

// Backends support floats and integers of 8, 32 and 64 bits. Converts tensors of other dtypes.
// Reduced::put_back copies the result back if it does not share memory.
Reduced reduced_form(const at::Tensor& tensor, ReduceOp op, int64_t n_ranks) {
  Reduced reduced{tensor, op, tensor.is_floating_point() && op != ReduceOp::sum};
  if (tensor.scalar_type() == at::kBool) {
    reduced.tensor = tensor.view(at::kByte);
    if (op == ReduceOp::sum) reduced.op = ReduceOp::max;
  } else if (tensor.is_complex() && op == ReduceOp::sum) {
    reduced.tensor = at::view_as_real(tensor);
  } else if (tensor.scalar_type() == at::kShort) {
    reduced.tensor = tensor.to(at::kInt);
  } else if (reduced.is_ordered) {
    reduced.tensor = to_ordered(tensor, op);
  } else if (at::isReducedFloatingType(tensor.scalar_type()) && n_ranks > 2) {
    reduced.tensor = tensor.to(at::kFloat);  // a sum of two is rounded only once anyway
  }
  return reduced;
}

void Reduced::put_back(const at::Tensor& given) const {
  if (is_ordered)
    given.copy_(from_ordered(tensor));
  else if (!tensor.is_alias_of(given))
    given.copy_(tensor);
}

bool is_scattered_exactly(const at::Tensor& tensor, ReduceOp op) {
  return tensor.is_floating_point() && tensor.element_size() >= 4 && op == ReduceOp::sum;
}

at::Tensor reduce(at::TensorList rows, ReduceOp op) {
  const bool is_bool = rows[0].scalar_type() == at::kBool;
  if (op == ReduceOp::sum && !is_bool) return sum_of(rows);
  at::Tensor result = rows[0];
  for (const at::Tensor& row : rows.slice(1))
    result = op == ReduceOp::min ? at::minimum(result, row) : at::maximum(result, row);
  return result;
}

}  // namespace redco::mesh
