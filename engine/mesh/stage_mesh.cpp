// The part of a mesh that is one stage of a pipeline.

#include "imagined.h"
#include "single.h"

#include <redco/detail/notes.h>
#include <redco/error.h>
#include <redco/mesh.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace redco {

namespace {

constexpr Mesh::Dim stages = Mesh::dim_of(Mesh::pipeline);

// The groups of this process's own stage are those of the run. For another stage the groups send
// nothing, because its tensors have no values.
class StageMesh final : public Mesh {
 public:
  StageMesh(std::shared_ptr<const Mesh> run, int64_t stage, std::optional<int64_t> computing)
      : run_(std::move(run)), stage_(stage), computing_(computing) {
    set_sequence_parallel(run_->sequence_parallel());
    n_chunks_per_stage_ = run_->n_chunks_per_stage();
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
  bool is_absent() const override {
    return stage_ % run_->size(stages) != run_->coordinate(stages) ||
           computing_.value_or(stage_) != stage_;
  }
  std::shared_ptr<const Mesh> of_stage(int64_t stage, std::optional<int64_t>) const override {
    return run_->of_stage(stage, computing_);
  }
  std::shared_ptr<const Mesh> of_run() const override { return run_; }

 private:
  std::shared_ptr<const Mesh> run_;
  int64_t stage_;
  std::optional<int64_t> computing_;
  std::array<std::unique_ptr<Group>, n_dims> own_groups_;
};

}  // namespace

std::shared_ptr<const Mesh> Mesh::of_stage(int64_t stage, std::optional<int64_t> computing) const {
  std::weak_ptr<const Mesh>& known = stages_[{stage, computing}];
  std::shared_ptr<const Mesh> found = known.lock();
  if (!found) known = found = std::make_shared<StageMesh>(shared_from_this(), stage, computing);
  return found;
}

Group& Mesh::link(int64_t from, int64_t to) const {
  const int64_t earlier = std::min(from, to), first = earlier % size(stages);
  auto found = links_.find({from - earlier + first, to - earlier + first});
  require(found != links_.end(), "this mesh has no link from stage ", from, " to stage ", to);
  return *found->second;
}

std::vector<Mesh::Links::key_type> Mesh::links_of(int64_t n_ranks, int64_t n_chunks_per_stage) {
  std::vector<Links::key_type> links;
  for (int64_t i = 0; i < n_ranks - int64_t(n_chunks_per_stage == 1); ++i) {
    links.emplace_back(i, i + 1);
    links.emplace_back(i + 1, i);
  }
  return links;
}

std::string Mesh::name_of(const Links::key_type& link) {
  return facts[stages].name + (" " + std::to_string(link.first)) + ">" +
         std::to_string(link.second);
}

}  // namespace redco
