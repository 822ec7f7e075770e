// Operators on the fake devices: the CPU's, run when their stream comes to them.

#include "fake_device.h"
#include "fake_streams.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace fake {

namespace {

using torch::jit::Stack;

constexpr int garbage = 0xAB;

// Memory is overwritten when its stream comes to where it was freed, and never used again.
class Memory final : public c10::Allocator {
 public:
  struct Block {
    void* data;
    size_t size;
    c10::Device device;
  };

  c10::DataPtr allocate(size_t size) override {
    c10::Device device = current_device();
    if (size == 0) return {nullptr, device};
    auto block = std::make_unique<Block>(Block{std::malloc(size), size, device});
    live_bytes += int64_t(size);
    void* data = block->data;
    return {data, block.release(), &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t size) const override {
    default_copy_data(to, from, size);
  }

  bool is_intact() {
    std::lock_guard lock(mutex_);
    return std::ranges::all_of(freed_, [](const Block& block) {
      auto bytes = static_cast<const unsigned char*>(block.data);
      return std::all_of(bytes, bytes + block.size, [](int byte) { return byte == garbage; });
    });
  }

  static Memory& get() {
    static auto& made = *new Memory;
    return made;
  }
  std::atomic<int64_t> live_bytes = 0;

 private:
  static void release(void* context) {
    auto block = static_cast<Block*>(context);
    Stream::of(block->device).add([block] {
      Memory& all = get();
      std::memset(block->data, garbage, block->size);
      all.live_bytes -= int64_t(block->size);
      std::lock_guard lock(all.mutex_);
      all.freed_.push_back(*block);
      delete block;
    });
  }

  std::mutex mutex_;
  std::vector<Block> freed_;
};

bool is_fake(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == type;
}

// The same memory as a tensor of the CPU, which keeps it.
at::Tensor on_cpu(const at::Tensor& tensor) {
  if (!is_fake(tensor)) return tensor;
  return at::for_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes())
      .strides(tensor.strides())
      .options(at::TensorOptions(tensor.scalar_type()))
      .deleter([storage = tensor.storage()](void*) {})
      .make_tensor();
}

// Of the same sizes and type, for what an operator makes of those.
at::Tensor blank(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(),
                           at::TensorOptions(tensor.scalar_type()))
      .zero_();
}

// The arguments with other tensors and another device.
template <class Change>
Stack changed(const Stack& arguments, c10::Device device, const Change& change) {
  Stack result;
  for (const c10::IValue& value : arguments) {
    if (value.isTensor()) {
      result.emplace_back(change(value.toTensor()));
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> list;
      for (const at::Tensor& each : value.toTensorVector()) list.push_back(change(each));
      result.emplace_back(list);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& each : value.toOptionalTensorVector())
        list.push_back(each ? std::optional(change(*each)) : std::nullopt);
      result.emplace_back(list);
    } else if (value.isDevice()) {
      result.emplace_back(device);
    } else {
      result.push_back(value);
    }
  }
  return result;
}

at::Tensor first_fake(const Stack& arguments) {
  at::Tensor found;
  changed(arguments, at::kCPU, [&](const at::Tensor& tensor) {
    if (!found.defined() && is_fake(tensor)) found = tensor;
    return tensor;
  });
  return found;
}

std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  return value.isTensorList() ? value.toTensorVector() : std::vector<at::Tensor>{};
}

// Returns the result of an operator for a value that it has written to.
std::optional<c10::IValue> written(const c10::FunctionSchema& schema, size_t i,
                                   const Stack& arguments) {
  const c10::AliasInfo* alias = schema.returns()[i].alias_info();
  if (alias == nullptr || !alias->isWrite()) return std::nullopt;
  for (size_t k = 0; k < arguments.size(); ++k) {
    const c10::AliasInfo* other = schema.arguments()[k].alias_info();
    if (other != nullptr && other->beforeSets() == alias->beforeSets()) return arguments[k];
  }
  return std::nullopt;
}

// Writes the results of an operator on tensors of the CPU to others.
void run(const c10::OperatorHandle& op, Stack stack, const Stack& results) {
  at::NoGradGuard no_grad;
  op.callBoxed(stack);
  for (size_t i = 0; i < results.size(); ++i) {
    auto to = tensors_of(results[i]), from = tensors_of(stack[i]);
    for (size_t k = 0; k < to.size(); ++k)
      if (to[k].defined() && !to[k].is_alias_of(from[k])) to[k].copy_(from[k]);
  }
}

// Of the sizes and types that the operator returns for zeros.
Stack empty_results(const c10::OperatorHandle& op, const Stack& arguments, c10::Device device) {
  Stack results, shapes;
  for (size_t i = 0; i < op.schema().returns().size(); ++i) {
    auto same = written(op.schema(), i, arguments);
    // Of one that the caller gives an operator for its result the sizes may be others.
    bool is_sized = same && !(same->isTensor() && same->toTensor().numel() == 0);
    if (is_sized) {
      results.push_back(*same);
      continue;
    }
    if (shapes.empty()) {
      at::NoGradGuard no_grad;
      shapes = changed(arguments, at::kCPU, blank);
      op.callBoxed(shapes);
    }
    auto empty = [&](const at::Tensor& shape) {
      return shape.defined()
                 ? at::empty_strided(shape.sizes(), shape.strides(), shape.options().device(device))
                 : shape;
    };
    results.push_back(changed({shapes[i]}, device, empty).front());
    if (same) {
      at::Tensor given = same->toTensor(), sized = results.back().toTensor();
      given.unsafeGetTensorImpl()->set_storage_keep_dtype(sized.storage());
      given.unsafeGetTensorImpl()->set_sizes_and_strides(sized.sizes(), sized.strides());
      results.back() = given;
    }
  }
  return results;
}

void queue(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  Stack arguments(stack->end() - ptrdiff_t(schema.arguments().size()), stack->end());
  torch::jit::drop(*stack, arguments.size());
  at::Tensor example = first_fake(arguments);
  c10::Device device = example.defined() ? example.device() : current_device();
  Stream& stream = Stream::of(device);
  bool has_numbers = std::ranges::any_of(schema.returns(), [](const c10::Argument& each) {
    return each.type()->kind() != c10::TypeKind::TensorType &&
           each.type()->kind() != c10::TypeKind::ListType;
  });
  bool reads_sizes = schema.name() == "aten::nonzero" || schema.name() == "aten::_unique2";
  if (has_numbers || reads_sizes) {
    stream.synchronize();
    at::NoGradGuard no_grad;
    Stack results = changed(arguments, at::kCPU, on_cpu);
    op.callBoxed(results);
    for (c10::IValue& each : results)
      if (each.isTensor()) each = each.toTensor().to(device);
    stack->insert(stack->end(), results.begin(), results.end());
    return;
  }
  Stack results = empty_results(op, arguments, device);
  stack->insert(stack->end(), results.begin(), results.end());
  // Addresses are those of now, as of a kernel that is launched.
  stream.add([op, arguments = changed(arguments, at::kCPU, on_cpu),
              results = changed(results, at::kCPU, on_cpu)] { run(op, arguments, results); });
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  c10::OptionalDeviceGuard guard(device);
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(sizes, &Memory::get(), keys, at::dtype_or_default(dtype),
                                   format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  c10::OptionalDeviceGuard guard(device);
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(sizes, strides, &Memory::get(), keys,
                                           at::dtype_or_default(dtype));
}

// As CUDA: only pinned memory of the host is copied without it.
at::Tensor& copy(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  const at::Tensor& device = is_fake(self) ? self : source;
  const at::Tensor& other = is_fake(self) ? source : self;
  Stream& stream = Stream::of(device.device());
  bool waits = !is_fake(other) && !(non_blocking && other.is_pinned());
  if (waits) stream.synchronize();
  stream.add([to = on_cpu(self), from = on_cpu(source)]() mutable {
    at::NoGradGuard no_grad;
    to.copy_(from);
  });
  if (waits) stream.synchronize();
  return self;
}

at::Scalar local_scalar(const at::Tensor& self) {
  Stream::of(self.device()).synchronize();
  return at::_local_scalar_dense(on_cpu(self));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&queue>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("copy_", copy);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
}

}  // namespace

int64_t live_bytes() { return Memory::get().live_bytes; }
bool freed_memory_is_intact() { return Memory::get().is_intact(); }

}  // namespace fake
