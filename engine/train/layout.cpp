// How a Trainer's parameters, gradients and optimizer states lie over the processes.

#include <redco/coalesced.h>
#include <redco/error.h>
#include <redco/parameter_store.h>
#include <redco/random.h>
#include <redco/trainer.h>

#include "batches.h"
#include "gradient_reducer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <map>
#include <set>

namespace redco {

namespace {

// The dimension over which dp shares a parameter: the first that mp leaves whole and that has a row
// for each rank. Nothing for small ones.
std::optional<Placement> shared_over_dp(const at::Tensor& param, const Mesh& mesh,
                                        int64_t min_size) {
  if (mesh.size(Mesh::dp) == 1 || param.numel() < min_size) return std::nullopt;
  Placement on_mp = placements_of(param)[Mesh::mp];
  for (int64_t dim = 0; dim < param.dim(); ++dim) {
    bool is_taken = on_mp.is_sharded() && on_mp.dim == dim;
    if (!is_taken && param.size(dim) >= mesh.size(Mesh::dp)) return Placement::shard(dim);
  }
  return std::nullopt;
}

bool ends_with(const std::string& path, const std::string& name) {
  return path == name || (path.size() > name.size() && path.ends_with(name) &&
                          path[path.size() - name.size() - 1] == '.');
}

// An optimizer's state lies as the parameters it is about.
Tree laid_like(const Tree& state, const std::vector<std::string>& names,
               const std::vector<at::Tensor>& params) {
  return map_tensors(state, [&](const std::string& path, const at::Tensor& tensor) {
    for (size_t i = 0; i < names.size(); ++i)
      if (ends_with(path, names[i]) && tensor.sizes() == params[i].sizes() && !is_sharded(tensor))
        return shard(tensor, mesh_of(params[i]), placements_of(params[i]));
    return tensor;
  });
}

// Each process made its parameters itself: unlike ones would train into nonsense without a word.
void check_alike(const Tree& params, Group& world) {
  std::vector<NamedTensor> named = named_tensors(params);
  std::erase_if(named, [](const NamedTensor& param) { return is_sharded(param.second); });
  std::vector<at::Tensor> sums;
  for (const auto& [name, param] : named) sums.push_back(param.to(at::kDouble).abs().sum());
  if (sums.empty()) return;
  at::Tensor own = at::stack(sums);
  at::Tensor most = world.all_reduce(own.clone(), ReduceOp::max);
  at::Tensor least = world.all_reduce(own.clone(), ReduceOp::min);
  at::Tensor differs = (most - least).gt(most * 1e-6);
  for (size_t i = 0; i < named.size(); ++i)
    require(!differs[int64_t(i)].item<bool>(), "Trainer: parameter '", named[i].first,
            "' is not the same on all processes. Make parameters with a generator that is: "
            "deployer:gen_rng(), or one seeded alike everywhere");
}

}  // namespace

void Trainer::setup_running_step(const Dataset& examples, int64_t per_device_batch_size) {
  if (is_laid_out_) return;
  auto [local, global] = deployer_->get_local_global_micro_batch_size(per_device_batch_size);
  // The same examples on all processes, so that they come to the same layout.
  int64_t n = std::min(examples.size, collate_ == Collate::local ? local : global);
  Tree batch = to_device(examples.collate(index_range(0, n)), device_);
  lay_out([&](const Tree& params) {
    Tree cast = map_tensors(params, [&](const std::string&, const at::Tensor& param) {
      return casts_ && param.is_floating_point() ? param.to(compute_dtype_) : param;
    });
    loss_fn_(make_rng(seed_), state_, cast, batch, true);
  });
}

void Trainer::lay_out(const std::function<void(const Tree& params)>& forward) {
  is_laid_out_ = true;
  const std::shared_ptr<Mesh>& mesh = deployer_->mesh();
  // On one process it decides nothing, but finds faults of the rules.
  std::vector<ShardingDecision> decisions =
      decide_sharding(state_.params, mesh->size(Mesh::mp), params_sharding_rules_, forward);
  if (mesh->world().size() > 1) {
    check_alike(state_.params, mesh->world());
    if (mesh->size(Mesh::mp) > 1) deployer_->log_info(to_string(decisions), "Sharding");
    std::map<std::string, Placement> on_mp;
    for (const ShardingDecision& decision : decisions) on_mp[decision.name] = decision.placement;

    at::NoGradGuard no_grad;
    std::vector<at::Tensor> stored;
    std::vector<std::string> stored_names;
    std::map<const void*, at::Tensor> laid_out;  // tied weights stay tied
    state_.params =
        map_tensors(state_.params, [&](const std::string& name, const at::Tensor& whole) {
          at::Tensor& param = laid_out[whole.unsafeGetTensorImpl()];
          if (!param.defined()) {
            // What another Deployer's processes share is theirs to bring together.
            at::Tensor source = mesh_of(whole) == mesh ? whole : full(whole);
            param = shard(source, mesh, {Placement(), on_mp[name]}).detach();
            auto part = deployer_->zero() == 3
                            ? shared_over_dp(param, *mesh, deployer_->zero_min_size())
                            : std::nullopt;
            if (part) {
              param = redistribute(param, {*part, on_mp[name]}).detach();
              stored.push_back(param);
              stored_names.push_back(name);
            }
            if (whole.requires_grad()) param.set_requires_grad(true);
          }
          return param;
        });
    for (at::Tensor& leaf : leaves_) leaf = laid_out.at(leaf.unsafeGetTensorImpl());
    if (!stored.empty()) store_ = ParameterStore::make(stored, blocks_by_name(stored_names));
  }
  prepare_optimizer(std::exchange(given_opt_state_, std::nullopt));
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
      // The optimizer works on the part that is there.
      if (placements_of(leaf)[Mesh::dp].is_sharded()) updates_.back() = view_of_part(leaf, target);
    } else if (deployer_->zero() > 0) {
      if (auto part = shared_over_dp(leaf, *mesh, deployer_->zero_min_size())) {
        target[Mesh::dp] = *part;
        at::Tensor own = view_of_part(leaf, target);
        // The optimizers walk parameters as one piece of memory.
        updates_.back() = to_local(own).is_non_overlapping_and_dense() ? own : own.contiguous();
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
}

// Each rank has updated its part of what dp shares.
void Trainer::refresh_params() {
  if (store_) store_->release();
  if (deployer_->zero() == 0 || deployer_->zero() == 3 || !reducer_) return;
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
