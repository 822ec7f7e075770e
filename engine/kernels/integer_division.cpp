// Division of integers that rounds towards zero. LibTorch's kernel for CPUs divides the smallest
// integer by -1 with the processor's instruction, which ends the program by a signal. Here the
// quotient is the smallest integer again, as in the other modes of rounding.

#include <ATen/core/Tensor.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include <optional>
#include <string_view>

namespace redco::kernels {

namespace {

using Mode = std::optional<std::string_view>;

// The operands of a division with some divisors of -1. These are replaced with 1 for the division,
// and their quotients afterwards.
struct Operands {
  at::Tensor self, other;
  at::Tensor is_negated, negated;

  at::Tensor replaced(const at::Tensor& quotient) const {
    return at::where(is_negated, negated, quotient);
  }
};

std::optional<Operands> with_negation(const at::Tensor& self, const at::Tensor& other,
                                      const Mode& mode) {
  if (mode != "trunc" || !self.is_cpu() || !other.is_cpu()) return std::nullopt;
  at::ScalarType type = at::result_type(self, other);
  if (type != at::kInt && type != at::kLong) return std::nullopt;
  at::Tensor is_negated = other.eq(-1);
  if (!is_negated.any().item<bool>()) return std::nullopt;
  at::Tensor dividend = self.to(type);
  return Operands{dividend, other.to(type).masked_fill(is_negated, 1), is_negated, dividend.neg()};
}

// LibTorch registers nothing for division on BackendSelect, which comes before each device.
constexpr c10::DispatchKeySet below_this(c10::DispatchKeySet::FULL_AFTER,
                                         c10::DispatchKey::BackendSelect);

at::Tensor div(c10::DispatchKeySet keys, const at::Tensor& self, const at::Tensor& other,
               Mode mode) {
  using Op = at::_ops::div_Tensor_mode;
  if (auto safe = with_negation(self, other, mode))
    return safe->replaced(Op::redispatch(keys & below_this, safe->self, safe->other, mode));
  return Op::redispatch(keys & below_this, self, other, mode);
}

at::Tensor& div_(c10::DispatchKeySet keys, at::Tensor& self, const at::Tensor& other, Mode mode) {
  auto safe = with_negation(self, other, mode);
  at::_ops::div__Tensor_mode::redispatch(keys & below_this, self, safe ? safe->other : other, mode);
  return safe ? self.copy_(safe->replaced(self)) : self;
}

at::Tensor& div_out(c10::DispatchKeySet keys, const at::Tensor& self, const at::Tensor& other,
                    Mode mode, at::Tensor& out) {
  auto safe = with_negation(self, other, mode);
  at::_ops::div_out_mode::redispatch(keys & below_this, safe ? safe->self : self,
                                     safe ? safe->other : other, mode, out);
  return safe ? out.copy_(safe->replaced(out)) : out;
}

TORCH_LIBRARY_IMPL(aten, BackendSelect, m) {
  m.impl("div.Tensor_mode", div);
  m.impl("div_.Tensor_mode", div_);
  m.impl("div.out_mode", div_out);
}

}  // namespace

}  // namespace redco::kernels
