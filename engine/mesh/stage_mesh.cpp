// The part of a mesh that is one stage of a pipeline.

#include "imagined.h"
#include "single.h"

#include <redco/detail/notes.h>
#include <redco/error.h>
#include <redco/mesh.h>

#include <array>
#include <memory>
#include <optional>
#include <utility>

namespace redco {

namespace {

constexpr Mesh::Dim stages = Mesh::dim_of(Mesh::pipeline);

// The groups of this process's own stage are those of the run. For another stage the groups send
// nothing, because its tensors have no values.
class StageMesh final : public Mesh {
 public:
  StageMesh(std::shared_ptr<const Mesh> run, int64_t stage) : run_(std::move(run)), stage_(stage) {
    set_sequence_parallel(run_->sequence_parallel());
    own_groups_[stages] = mesh::make_single(facts[stages].name);
    if (!is_absent()) return;
    for (Dim dim : dims)
      if (dim != stages)
        own_groups_[dim] =
            mesh::make_imagined_group(facts[dim].name, run_->size(dim), run_->coordinate(dim));
  }

  const Processes& processes() const override { return run_->processes(); }
  c10::Device device() const override { return run_->device(); }
  Group& group(Dim dim) const override {
    return own_groups_[dim] ? *own_groups_[dim] : run_->group(dim);
  }
  Group& world() const override { return run_->world(); }
  Notes& notes() const override { return run_->notes(); }
  int64_t reconnects() const override { return run_->reconnects(); }
  std::optional<int64_t> stage() const override { return stage_; }
  bool is_absent() const override { return stage_ != run_->coordinate(stages); }
  std::shared_ptr<const Mesh> of_run() const override { return run_; }

 private:
  std::shared_ptr<const Mesh> run_;
  int64_t stage_;
  std::array<std::unique_ptr<Group>, n_dims> own_groups_;
};

}  // namespace

std::shared_ptr<const Mesh> Mesh::of_stage(int64_t stage) const {
  if (stages_.empty()) stages_.resize(size_t(size(stages)));
  std::weak_ptr<const Mesh>& known = stages_.at(size_t(stage));
  std::shared_ptr<const Mesh> found = known.lock();
  if (!found) known = found = std::make_shared<StageMesh>(shared_from_this(), stage);
  return found;
}

Group& Mesh::link(int64_t, int64_t) const { fail("this mesh has no links between stages"); }

}  // namespace redco
