// The form in which tensors travel between processes.

#include "wire_form.h"

#include <redco/error.h>

#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/any.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/where.h>

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
  return to_integer_order(wide.view(is_double ? at::kLong : at::kInt))
      .masked_fill_(wide.isnan(), op == ReduceOp::max ? most : -most - 1);
}

at::Tensor from_ordered(const at::Tensor& ordered) {
  return to_integer_order(ordered).view(ordered.scalar_type() == at::kLong ? at::kDouble
                                                                           : at::kFloat);
}

// Adds the rows one by one, so that all processes get the same bits, whatever their CPUs are.
at::Tensor sum_of_rows(const at::Tensor& rows) {
  const at::ScalarType type = rows.scalar_type();
  at::Tensor first = rows[0].to(at::isReducedFloatingType(type) ? at::kFloat : type);
  if (rows.size(0) == 1) return first.to(type);
  at::Tensor sum = first.add(rows[1]);
  for (int64_t i = 2; i < rows.size(0); ++i) sum.add_(rows[i]);
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
  constexpr int64_t most = 256 << 10;
  return int64_t(tensor.nbytes()) * (n_ranks - 1) <= most;
}

at::Tensor copies_of(const at::Tensor& tensor, int64_t n_ranks) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), n_ranks);
  return tensor.unsqueeze(0).expand(sizes).clone(at::MemoryFormat::Contiguous);
}

// Backends support integers of 8, 32 and 64 bits and floats; other dtypes are converted, and copied
// back if they do not share memory.
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
    reduced.tensor = tensor.to(at::kFloat);  // a sum of two is rounded once anyway
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

at::Tensor reduce_rows(const at::Tensor& rows, ReduceOp op) {
  if (rows.scalar_type() == at::kBool && op == ReduceOp::sum) return at::any(rows, 0);
  switch (op) {
    case ReduceOp::sum:
      return sum_of_rows(rows);
    case ReduceOp::max:
      return at::amax(rows, {0});
    case ReduceOp::min:
      return at::amin(rows, {0});
  }
  fail("unknown reduction");
}

}  // namespace redco::mesh
