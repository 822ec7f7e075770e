#pragma once

#include <redco/mesh.h>
#include <redco/trainer.h>

#include <memory>
#include <string>
#include <vector>

namespace redco::lua {

/// The runs of a state, for sharding_report. It outlives their objects, which the collector
/// may free at any time.
class ReportedRuns : public std::enable_shared_from_this<ReportedRuns> {
 public:
  void add(std::shared_ptr<const Mesh> mesh) { meshes_.push_back(std::move(mesh)); }
  /// Wraps a Trainer so that its memory is known after it is destroyed.
  std::shared_ptr<Trainer> watched(std::unique_ptr<Trainer> trainer);
  /// Returns redco::sharding_report; empty on all processes of a run except process 0.
  std::string report() const;

 private:
  std::vector<std::shared_ptr<const Mesh>> meshes_;
  std::vector<std::weak_ptr<const Trainer>> trainers_;
  std::vector<TrainerMemory> of_gone_trainers_;
};

}  // namespace redco::lua
