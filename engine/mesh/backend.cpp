// The registry of collective backends by device type.

#include "backend.h"

#include "../core/require_usage.h"
#include "nccl.h"

#include <redco/detail/cuda.h>

#include <map>
#include <mutex>

namespace redco::mesh {

namespace {

struct DeviceBackends {
  std::mutex mutex;
  std::map<c10::DeviceType, DeviceBackend> by_type = {{c10::kCUDA, {use_gpu_of, make_nccl}}};

  static DeviceBackends& get() {
    static auto& made = *new DeviceBackends;
    return made;
  }
};

}  // namespace

void Backend::abort() const { aborter()(); }

std::function<void()> Backend::aborter() const {
  return [running = c10::weak_intrusive_ptr<c10d::Backend>(c10d), is_aborted = is_aborted] {
    *is_aborted = true;
    if (auto alive = running.lock()) alive->abort();
  };
}

void set_device_backend(c10::DeviceType type, const DeviceBackend& backend) {
  DeviceBackends& all = DeviceBackends::get();
  std::lock_guard lock(all.mutex);
  all.by_type[type] = backend;
}

const DeviceBackend& device_backend(c10::DeviceType type) {
  DeviceBackends& all = DeviceBackends::get();
  std::lock_guard lock(all.mutex);
  auto found = all.by_type.find(type);
  require_usage(found != all.by_type.end(), "device \"", c10::DeviceTypeName(type, true),
                "\": processes run on \"cpu\" and \"cuda\"");
  return found->second;
}

}  // namespace redco::mesh
