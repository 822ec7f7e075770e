#include <redco/detail/planned_device.h>

#include <utility>

namespace redco {

namespace {

thread_local std::optional<c10::DeviceType> of_this_thread;

}  // namespace

std::optional<c10::DeviceType> planned_device() { return of_this_thread; }

WithPlannedDevice::WithPlannedDevice(c10::DeviceType type)
    : outer_(std::exchange(of_this_thread, type)) {}

WithPlannedDevice::~WithPlannedDevice() { of_this_thread = outer_; }

}  // namespace redco
