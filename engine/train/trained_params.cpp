// Shards a Trainer's parameters, gradients and optimizer states over the processes.

#include <redco/detail/coalesced.h>
#include <redco/detail/zero3_store.h>
#include <redco/error.h>
#include <redco/moves.h>
#include <redco/random.h>
#include <redco/trainer.h>

#include "batches.h"
#include "gradient_reducer.h"
#include "shard_params.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <map>
#include <utility>

namespace redco {

namespace {

bool ends_with(const std::string& path, const std::string& name) {
  return path == name || (path.size() > name.size() && path.ends_with(name) &&
                          path[path.size() - name.size() - 1] == '.');
}

// Gives an optimizer's state the placements of its parameters.
Tree laid_like(const Tree& state, const std::vector<std::string>& names,
               const std::vector<at::Tensor>& params) {
  return map_tensors(state, [&](const std::string& path, const at::Tensor& tensor) {
    for (size_t i = 0; i < names.size(); ++i)
      if (ends_with(path, names[i]) && tensor.sizes() == params[i].sizes() && !is_sharded(tensor))
        return shard(tensor, mesh_of(params[i]), placements_of(params[i]));
    return tensor;
  });
}

}  // namespace

void Trainer::setup_running_step(const Dataset& examples, int64_t per_device_batch_size) {
  if (is_laid_out_) return;
  Tree batch = in_dtype(
      layout_batch(examples, per_device_batch_size, collate_, device_, *deployer_), compute_dtype_);
  lay_out([&](const Tree& params) {
    Autocast region = autocast();
    loss_fn_(make_rng(seed_), state_, in_compute_dtype(params), batch, true);
  });
}

void Trainer::lay_out(const std::function<void(const Tree& params)>& forward) {
  LaidOut laid_out = redco::lay_out(state_.params, *deployer_, params_sharding_rules_, forward);
  const Mesh& mesh = *deployer_->mesh();
  if (mesh.size(Mesh::mp) > 1) deployer_->log_info(to_string(laid_out.decisions), "Sharding");
  state_.params = std::move(laid_out.params);
  store_ = std::move(laid_out.store);
  auto params = named_tensors(state_.params);
  std::map<std::string, at::Tensor> by_name(params.begin(), params.end());
  for (size_t i = 0; i < leaves_.size(); ++i) leaves_[i] = by_name.at(names_[i]);
  prepare_optimizer(std::exchange(given_opt_state_, std::nullopt));
  is_laid_out_ = true;  // set last, so that a failure so far, such as in a loss_fn, can be fixed
}

void Trainer::prepare_optimizer(std::optional<Tree> opt_state) {
  at::NoGradGuard no_grad;
  const std::shared_ptr<Mesh>& mesh = deployer_->mesh();
  updates_.clear();
  std::vector<Placements> targets;
  for (const at::Tensor& leaf : leaves_) {
    updates_.push_back(leaf);
    Placements target = placements_of(leaf);
    if (deployer_->zero() == 3) {
      // The optimizer works on the local part.
      if (placements_of(leaf)[Mesh::dp].is_sharded()) updates_.back() = view_of_part(leaf, target);
    } else if (deployer_->zero() > 0) {
      if (auto part = shared_over_dp(leaf, *deployer_)) {
        target[Mesh::dp] = *part;
        at::Tensor own = view_of_part(leaf, target);
        // The optimizers need each parameter as one dense block of memory.
        updates_.back() = memory_of(own).is_non_overlapping_and_dense() ? own : own.contiguous();
      }
    }
    targets.push_back(target);
  }
  std::vector<NamedTensor> trained;
  for (size_t i = 0; i < leaves_.size(); ++i) trained.emplace_back(names_[i], updates_[i]);
  state_.opt_state = opt_state ? std::move(*opt_state) : optimizer_->init(trained);
  if (mesh->world().size() == 1) return;
  state_.opt_state = laid_like(state_.opt_state, names_, updates_);
  reducer_ = std::make_unique<GradientReducer>(leaves_, targets);
  reconnects_ = mesh->reconnects();
}

// After a failed step the processes may be at different steps.
void Trainer::rejoin() {
  Mesh& mesh = *deployer_->mesh();
  if (!reducer_ || std::exchange(reconnects_, mesh.reconnects()) == mesh.reconnects()) return;
  at::Tensor steps = at::tensor({state_.step, -state_.step}, at::kLong).to(mesh.device());
  steps = mesh.world().all_reduce(steps, ReduceOp::max).cpu();
  auto newest = steps[0].item<int64_t>(), oldest = -steps[1].item<int64_t>();
  require(newest == oldest, "the processes were interrupted between steps: some are at step ",
          oldest, ", some at ", newest,
          "; give the Trainer a state they share, such as that of a checkpoint");
  reducer_->forget_plan();
  refresh_params();
}

// Gathers parameters of which each dp rank has updated a part.
void Trainer::refresh_params() {
  if (store_) store_->release();
  if (deployer_->zero() == 0 || deployer_->zero() == 3 || !reducer_) return;
  Moving moving(Move::parameters, "zero");
  std::map<at::ScalarType, std::vector<size_t>> shared;
  for (size_t i = 0; i < leaves_.size(); ++i)
    if (!updates_[i].is_same(leaves_[i])) shared[leaves_[i].scalar_type()].push_back(i);
  for (const auto& [type, leaves] : shared) {
    std::vector<at::Tensor> parts;
    for (size_t i : leaves) parts.push_back(updates_[i]);
    auto whole = start_change(parts, std::vector<Placement>(parts.size()), Mesh::dp).wait();
    for (size_t i = 0; i < leaves.size(); ++i) leaves_[leaves[i]].detach().copy_(whole[i]);
  }
}

}  // namespace redco
