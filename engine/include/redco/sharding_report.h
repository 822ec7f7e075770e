#pragma once

#include <redco/export.h>
#include <redco/mesh.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace redco {

/// Bytes of one kind: those on this device, and those of the whole.
struct HeldBytes {
  int64_t here = 0;
  int64_t whole = 0;
};

/// What a Trainer holds.
struct TrainerMemory {
  HeldBytes params, grads, opt_state;
};

/// What sharding did so far, for people: collectives by group and kind, the operators that were
/// gathered with what to do about each, what the largest of `trainers` holds, and how often plans
/// were at hand. Of this process and thread; `meshes` are those whose collectives count. One line
/// where there is one process.
REDCO_API std::string sharding_report(const std::vector<std::shared_ptr<const Mesh>>& meshes,
                                      const std::vector<TrainerMemory>& trainers);

}  // namespace redco
