#pragma once

#include <redco/group.h>

#include <memory>

namespace redco {

/// A group for tensors of devices whose collectives run on the host: tensors are copied there and
/// back. Several processes can share a device so; NCCL refuses that.
std::unique_ptr<Group> make_host_group(std::unique_ptr<Group> on_host);

}  // namespace redco
