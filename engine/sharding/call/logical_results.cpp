// Computes the geometries of a call's results on one process.

#include "logical_results.h"

#include "execution.h"

#include "../../mesh/spmd_log.h"

#include <redco/random.h>

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace redco::sharding {

using namespace mesh;

namespace {

// Zeros in the geometry of a tensor.
at::Tensor zeros_for(const at::Tensor& tensor, c10::Device device) {
  int64_t extent = 1;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim)
    extent += (std::max<int64_t>(tensor.size(dim), 1) - 1) * tensor.stride(dim);
  at::TensorOptions options = at::TensorOptions(tensor.dtype()).device(device);
  at::Tensor memory = at::zeros({tensor.storage_offset() + extent}, options);
  at::Tensor result = memory.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  result._set_conj(tensor.is_conj());
  result._set_neg(tensor.is_neg());
  return result;
}

bool shares_elements(const at::Tensor& tensor) {
  for (int64_t dim = 0; dim < tensor.dim(); ++dim)
    if (tensor.stride(dim) == 0 && tensor.size(dim) > 1) return true;
  return false;
}

// Runs the operator on zeros in the geometry of the call's tensors. Draws only from copies of the
// generators, and does not log the draws, because another process may have this plan already.
torch::jit::Stack called_on_zeros(const Call& call, c10::Device device) {
  torch::jit::Stack stack(call.arguments.begin(), call.arguments.end());
  std::vector<at::Tensor> tensors;
  for (const TensorArgument& argument : call.tensors) {
    // Keeps tensors that are the same the same: `copy_` of a tensor to itself does nothing, even if
    // its elements share memory.
    bool is_new = size_t(argument.first) >= tensors.size();
    tensors.push_back(is_new ? zeros_for(argument.tensor, device)
                             : tensors[size_t(argument.first)]);
  }
  set_tensors(call, tensors, stack);
  for (c10::IValue& value : stack) {
    if (value.isDevice()) value = device;
    if (value.isGenerator()) value = value.toGenerator().clone();
  }
  LogDraws not_logged(false);
  std::optional<WithRng> with_rng;
  if (WithRng::current().defined()) with_rng.emplace(WithRng::current().clone());
  call.op.handle.callBoxed(&stack);
  return stack;
}

// Runs an operator without a suitable meta kernel on real tensors, if they are small.
torch::jit::Stack called_on_small_zeros(const Call& call) {
  constexpr int64_t most = 1 << 16;  // elements
  // Skips an operator with a state: zeros cannot stand for a state, and a process without elements
  // has none.
  if (call.op.has_state || call.draws_numbers()) return {};
  int64_t n = 0;
  for (const TensorArgument& argument : call.tensors) n += argument.tensor.numel();
  if (n > most) return {};
  try {
    return called_on_zeros(call, call.mesh->device());
  } catch (const c10::Error&) {
    return {};
  }
}

}  // namespace

std::vector<std::optional<Geometry>> logical_results(const Call& call) {
  // The calls below are not part of the program that runs or is planned.
  WithExecution not_of_program(nullptr);
  bool writes_shared =
      std::any_of(call.tensors.begin(), call.tensors.end(), [](const TensorArgument& argument) {
        return argument.is_written && shares_elements(argument.tensor);
      });
  // Meta kernels do not detect all writes to shared elements, but a real kernel must not draw
  // numbers.
  bool is_real = writes_shared && !call.draws_numbers();
  torch::jit::Stack stack;
  try {
    stack = called_on_zeros(call, is_real ? call.mesh->device() : c10::Device(c10::kMeta));
  } catch (const c10::NotImplementedError&) {
    stack = called_on_small_zeros(call);
  } catch (const c10::Error&) {
    if (call.op.is_view || call.op.is_inplace_view || writes_shared) throw;
    // Some meta kernels accept fewer geometries than the real ones.
    stack = called_on_small_zeros(call);
  }
  std::vector<std::optional<Geometry>> results;
  auto add = [&](const at::Tensor& tensor, bool is_new) {
    results.emplace_back();
    if (!is_new || !tensor.defined()) return;
    results.back() = geometry_of(tensor);
    if (!call.op.is_view && !call.op.is_inplace_view) results.back()->offset = 0;
  };
  for (size_t i = 0; i < stack.size(); ++i) {
    // Written arguments are returned unchanged.
    bool is_new = call.op.returned[i] < 0 || call.op.is_inplace_view;
    if (stack[i].isTensor())
      add(stack[i].toTensor(), is_new);
    else if (stack[i].isTensorList())
      for (const at::Tensor& tensor : stack[i].toTensorVector()) add(tensor, is_new);
  }
  return results;
}

}  // namespace redco::sharding
