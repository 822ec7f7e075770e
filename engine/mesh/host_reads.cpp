// Makes operators that synchronise with a device call `wait_for_stream` first. They are intercepted
// with TESTING_ONLY_GenericWrapper, a dispatch key above autograd on which LibTorch registers
// nothing: threads enable it with `watch_host_reads`, and all other operators fall through.
#include "device_wait.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_local_scalar_dense_ops.h>
#include <ATen/ops/copy_ops.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

namespace redco::mesh {

namespace {

constexpr c10::DispatchKey watching = c10::DispatchKey::TESTING_ONLY_GenericWrapper;
constexpr c10::DispatchKeySet below_this(c10::DispatchKeySet::FULL_AFTER, watching);

bool is_on_device(const at::Tensor& tensor) { return !tensor.is_cpu() && !tensor.is_meta(); }

void wait_for_device_of(const at::Tensor& tensor) {
  if (is_on_device(tensor)) wait_for_stream(tensor.device());
}

at::Scalar local_scalar(c10::DispatchKeySet keys, const at::Tensor& self) {
  wait_for_device_of(self);
  return at::_ops::_local_scalar_dense::redispatch(keys & below_this, self);
}

at::Tensor& copy(c10::DispatchKeySet keys, at::Tensor& self, const at::Tensor& source,
                 bool non_blocking) {
  // The device reads and writes pinned host memory asynchronously.
  auto is_read_later = [&](const at::Tensor& host) { return non_blocking && host.is_pinned(); };
  if (self.is_cpu() && !is_read_later(self)) wait_for_device_of(source);
  if (source.is_cpu() && !is_read_later(source)) wait_for_device_of(self);
  return at::_ops::copy_::redispatch(keys & below_this, self, source, non_blocking);
}

// Operators whose result sizes depend on values on the device.
void dynamic_sizes(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                   torch::jit::Stack* stack) {
  const c10::IValue& self = torch::jit::peek(*stack, 0, op.schema().arguments().size());
  if (self.isTensor() && self.toTensor().defined()) wait_for_device_of(self.toTensor());
  op.redispatchBoxed(keys & below_this, stack);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericWrapper, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericWrapper, m) {
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("copy_", copy);
  for (const char* name : {"nonzero", "masked_select", "_unique", "_unique2", "unique_dim",
                           "unique_consecutive", "unique_dim_consecutive"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&dynamic_sizes>());
}

}  // namespace

void watch_host_reads() { c10::impl::tls_set_dispatch_key_included(watching, true); }

}  // namespace redco::mesh
