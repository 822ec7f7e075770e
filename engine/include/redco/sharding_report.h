#pragma once

#include <redco/export.h>
#include <redco/mesh.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace redco {

/// Bytes of one kind, on this device and in total.
struct HeldBytes {
  int64_t here = 0;
  int64_t whole = 0;
};

/// The memory that a Trainer holds.
struct TrainerMemory {
  HeldBytes params, grads, opt_state;
};

/// A readable report on sharding so far: collectives by group and kind, gathered operators with
/// advice on each, the memory of the largest of `trainers`, and how often plans were cached. It
/// covers this process and thread and the collectives of `meshes`. One line if there is one
/// process.
REDCO_API std::string sharding_report(const std::vector<std::shared_ptr<const Mesh>>& meshes,
                                      const std::vector<TrainerMemory>& trainers);

}  // namespace redco
