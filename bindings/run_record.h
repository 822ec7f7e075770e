#pragma once

#include <redco/mesh.h>
#include <redco/trainer.h>

#include <memory>
#include <string>
#include <vector>

namespace redco::lua {

/// What the runs of a state did: kept beyond their objects, which the collector takes when it
/// likes.
class RunRecord : public std::enable_shared_from_this<RunRecord> {
 public:
  void add(std::shared_ptr<const Mesh> mesh) { meshes_.push_back(std::move(mesh)); }
  /// The same Trainer; what it holds in the end is noted.
  std::shared_ptr<Trainer> watched(std::unique_ptr<Trainer> trainer);
  /// redco::sharding_report; empty on all processes of a run but number 0.
  std::string report() const;

 private:
  std::vector<std::shared_ptr<const Mesh>> meshes_;
  std::vector<std::weak_ptr<const Trainer>> trainers_;
  std::vector<TrainerMemory> of_gone_trainers_;
};

}  // namespace redco::lua
