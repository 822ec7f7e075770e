#pragma once

#include <redco/group.h>

#include <memory>

namespace redco::mesh {

/// Makes a group for device tensors whose collectives run on the host: tensors are copied there and
/// back. This lets several processes share a device, which NCCL refuses.
std::unique_ptr<Group> make_host_group(std::unique_ptr<Group> on_host);

}  // namespace redco::mesh
