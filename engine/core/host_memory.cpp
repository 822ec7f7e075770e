// Memory of the host that a GPU uses as its own.

#include "host_memory.h"

#include <redco/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <dlfcn.h>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

namespace redco {

namespace {

// Functions of CUDA's driver, from cuda.h. LibTorch has loaded its library.
struct Driver {
  int (*allocate)(void** memory, size_t bytes, unsigned flags);
  int (*address)(uint64_t* on_device, void* memory, unsigned flags);
  int (*free)(void* memory);

  static const Driver& get() {
    static const Driver driver = [] {
      void* library = dlopen("libcuda.so.1", RTLD_LAZY);
      auto find = [&](auto& function, const char* name) {
        void* found = library != nullptr ? dlsym(library, name) : nullptr;
        require(found != nullptr, "memory of the host: the driver has no function ", name);
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
      };
      Driver functions{};
      find(functions.allocate, "cuMemHostAlloc");
      find(functions.address, "cuMemHostGetDevicePointer_v2");
      find(functions.free, "cuMemFreeHost");
      return functions;
    }();
    return driver;
  }
};

struct Pinned {
  void* memory;
  c10::Device device;
};

// Kernels that use the memory may not have ended.
void free_pinned(void* context) {
  std::unique_ptr<Pinned> pinned(static_cast<Pinned*>(context));
  c10::impl::VirtualGuardImpl(pinned->device.type()).synchronizeDevice(pinned->device.index());
  Driver::get().free(pinned->memory);
}

c10::DataPtr allocate_pinned(size_t bytes, c10::Device device) {
  constexpr unsigned portable = 1, mapped = 2;
  const Driver& driver = Driver::get();
  const c10::DeviceGuard guard(device);
  auto pinned = std::make_unique<Pinned>(Pinned{nullptr, device});
  int status = driver.allocate(&pinned->memory, bytes, portable | mapped);
  require(status == 0, "the host cannot give ", bytes,
          " bytes of memory that the GPU can use (error ", status,
          " of cuMemHostAlloc): it needs that much free memory, which is never swapped, and a "
          "container that limits locked memory must allow it (`ulimit -l`)");
  uint64_t on_device = 0;
  status = driver.address(&on_device, pinned->memory, 0);
  if (status != 0) driver.free(pinned->memory);
  require(status == 0, "the GPU cannot use the host's memory (error ", status,
          " of cuMemHostGetDevicePointer)");
  return {reinterpret_cast<void*>(on_device), pinned.release(), free_pinned, device};
}

thread_local HostMover mover;

// The context that marks memory as moved.
struct Moved {
  c10::DataPtr memory;
};

void free_moved(void* context) { delete static_cast<Moved*>(context); }

}  // namespace

WithHostMover::WithHostMover(HostMover move) : outer_(std::exchange(mover, std::move(move))) {}
WithHostMover::~WithHostMover() { mover = std::move(outer_); }

bool has_moved(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.storage().data_ptr().get_deleter() == free_moved;
}

void move_memory(const at::Tensor& tensor, c10::DataPtr memory) {
  const at::NoGradGuard no_grad;
  c10::Storage storage = tensor.storage();
  auto bytes_at = [&](void* address) {
    return at::for_blob(address, {int64_t(storage.nbytes())})
        .options(at::TensorOptions(at::kByte).device(tensor.device()))
        .target_device(tensor.device())
        .make_tensor();
  };
  void* address = memory.get();
  bytes_at(address).copy_(bytes_at(storage.mutable_data()));
  storage.set_data_ptr({address, new Moved{std::move(memory)}, free_moved, tensor.device()});
}

void move_to_host(const at::Tensor& tensor) {
  constexpr size_t worth_moving = 1 << 16;  // the host's memory has pages
  if (tensor.storage().nbytes() < worth_moving) return;
  if (mover) return mover(tensor);
  if (!tensor.is_cuda() || has_moved(tensor)) return;
  move_memory(tensor, allocate_pinned(tensor.storage().nbytes(), tensor.device()));
}

}  // namespace redco
