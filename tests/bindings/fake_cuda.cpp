// Built as libtorch_cuda.so: a program that links it has that library loaded already when
// redco::load_cuda asks for it.
#include "fake_cuda.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <optional>

namespace redco::testing {

__attribute__((visibility("default"))) FakeCuda& fake_cuda() {
  static FakeCuda state;
  return state;
}

namespace {

thread_local c10::DeviceIndex current = 0;

struct Hooks : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return FakeCuda::n_devices; }
  int getNumGPUs() const override { return FakeCuda::n_devices; }
  c10::DeviceIndex current_device() const override { return current; }
};

const bool has_hooks = [] {
  at::CUDAHooksRegistry()->Register("CUDAHooks", [](at::CUDAHooksArgs args) {
    return std::unique_ptr<at::CUDAHooksInterface>(new Hooks(args));
  });
  return true;
}();

// An event is the number of those recorded before it: its milliseconds.
struct Guard : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = c10::kCUDA;
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {c10::kCUDA, current}; }
  void setDevice(c10::Device device) const override { current = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  void* getStreamNativeHandle(const c10::Stream) const { return nullptr; }  // LibTorch 2.11 asks
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return FakeCuda::n_devices; }
  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    static intptr_t n_recorded = 0;
    *event = reinterpret_cast<void*>(++n_recorded);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return fake_cuda().events_are_done; }
  void synchronizeEvent(void*) const override { fake_cuda().events_are_done = true; }
  void synchronizeDevice(c10::DeviceIndex) const override { ++fake_cuda().n_synchronized; }
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    return double(reinterpret_cast<intptr_t>(to) - reinterpret_cast<intptr_t>(from));
  }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

struct Allocator : c10::DeviceAllocator {
  struct Block {
    Allocator* owner;
    c10::DeviceIndex device;
    size_t bytes;
  };

  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    block->owner->allocated(block->device).decrease(block->bytes);
    delete block;
  }

  c10::DataPtr allocate(size_t bytes) override {
    auto& held = allocated(current);
    TORCH_CHECK_WITH(OutOfMemoryError, held.current + int64_t(bytes) <= FakeCuda::card_bytes,
                     "CUDA out of memory");
    held.increase(bytes);
    auto* block = new Block{this, current, bytes};
    return {block, block, &release, {c10::kCUDA, current}};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void*, const void*, size_t) const override {}
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { ++fake_cuda().n_emptied; }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0] = allocated(device);
    stats.reserved_bytes[0] = allocated(device);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    allocated(device).reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex device) override { allocated(device).reset_peak(); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return {size_t(FakeCuda::card_bytes - allocated(device).current), size_t(FakeCuda::card_bytes)};
  }

 private:
  c10::CachingAllocator::Stat& allocated(c10::DeviceIndex device) {
    return allocated_[size_t(device)];
  }
  std::array<c10::CachingAllocator::Stat, FakeCuda::n_devices> allocated_;
};

Allocator allocator;
REGISTER_ALLOCATOR(c10::kCUDA, &allocator)

constexpr c10::DispatchKeySet keys(c10::DispatchKey::CUDA);

// Makes a tensor on the GPU that `device` names.
template <class Function>
at::Tensor on(std::optional<at::Device> device, Function function) {
  c10::DeviceIndex before = current;
  if (device && device->has_index()) current = device->index();
  at::Tensor made = function();
  current = before;
  return made;
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return on(device, [&]() -> at::Tensor {
    return at::detail::empty_generic(sizes, &allocator, keys, dtype.value_or(at::kFloat), format);
  });
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  return on(device, [&]() -> at::Tensor {
    return at::detail::empty_strided_generic(sizes, strides, &allocator, keys,
                                             dtype.value_or(at::kFloat));
  });
}

at::Tensor& copy(at::Tensor& self, const at::Tensor&, bool) { return self; }

at::Tensor attention(const at::Tensor& query, const at::Tensor&, const at::Tensor&,
                     const std::optional<at::Tensor>&, double, bool, std::optional<double>, bool) {
  fake_cuda().attention_by_cudnn = at::globalContext().userEnabledCuDNNSDP();
  return at::empty_like(query);
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("copy_", TORCH_FN(copy));
}

// In the place of the engine's, which calls parts that need a GPU.
TORCH_LIBRARY_IMPL(aten, AutogradCUDA, m) {
  m.impl("scaled_dot_product_attention", TORCH_FN(attention));
}

}  // namespace
}  // namespace redco::testing
