// Keeps the runs of a state for sharding_report.

#include "reported_runs.h"

#include <redco/sharding_report.h>

#include <utility>

namespace redco::lua {

std::shared_ptr<Trainer> ReportedRuns::watched(std::unique_ptr<Trainer> trainer) {
  auto note_and_delete = [weak = weak_from_this()](Trainer* gone) {
    if (auto runs = weak.lock()) runs->of_gone_trainers_.push_back(gone->memory());
    delete gone;
  };
  std::shared_ptr<Trainer> shared(trainer.release(), note_and_delete);
  trainers_.push_back(shared);
  return shared;
}

std::string ReportedRuns::report() const {
  int64_t rank = meshes_.empty() ? find_processes().rank : meshes_.back()->processes().rank;
  if (rank != 0) return "";
  std::vector<TrainerMemory> memories = of_gone_trainers_;
  for (const auto& trainer : trainers_)
    if (auto alive = trainer.lock()) memories.push_back(alive->memory());
  std::string report = sharding_report(meshes_);
  std::string memory = has_several_processes(meshes_) ? memory_report(memories) : "";
  return memory.empty() ? report : report + "\n" + memory;
}

}  // namespace redco::lua
