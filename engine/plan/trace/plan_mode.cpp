// A script that is only planned.

#include "tracer.h"

#include <redco/error.h>
#include <redco/plan.h>

#include <memory>
#include <utility>

namespace redco {

using namespace plan;

struct PlanMode::Impl {
  std::shared_ptr<Mesh> mesh = mesh::make_imagined_mesh({});
  Tracer tracer{mesh};
  Tracer::Pause pause{tracer};
};

namespace {

thread_local bool is_planning = false;

}  // namespace

PlanMode::PlanMode() : impl_(std::make_unique<Impl>()) { is_planning = true; }
PlanMode::~PlanMode() { is_planning = false; }

bool PlanMode::is_on() { return is_planning; }

PlanMode::ScriptCall::ScriptCall() : outer_(Tracer::set_script_calling(true)) {}
PlanMode::ScriptCall::~ScriptCall() { Tracer::set_script_calling(outer_); }

std::optional<int64_t> planned_bytes() {
  const Tracer* tracer = Tracer::current();
  return tracer ? std::optional(tracer->alive_bytes()) : std::nullopt;
}

std::shared_ptr<Deployer> PlanMode::make_deployer(DeployerOptions options) {
  require(options.n_model_shards > 0, "n_model_shards = ", options.n_model_shards,
          " must be positive");
  options.device.reset();
  options.verbose = false;
  return Deployer::on_mesh(std::move(options), impl_->mesh);
}

}  // namespace redco
