// Saves a Trainer's state to a checkpoint and restores it.

#include <redco/trainer.h>

#include "run_state.h"

#include <redco/detail/zero3_store.h>
#include <redco/error.h>
#include <redco/sharding.h>

#include <ATen/core/grad_mode.h>

#include <map>
#include <utility>

namespace redco {

namespace {

// Copies the values of `from` to the tensors of `to`, which may be sharded.
void copy_values(const std::string& what, const Tree& from, const Tree& to) {
  std::map<std::string, at::Tensor> values;
  for (auto& [name, tensor] : named_tensors(from)) values[name] = tensor;
  for (const auto& [name, tensor] : named_tensors(to)) {
    auto found = values.find(name);
    require(found != values.end() && found->second.sizes() == tensor.sizes(), what, " '", name,
            "' is not in the checkpoint as it is here");
    if (tensor.defined()) tensor.detach().copy_(found->second);
  }
}

}  // namespace

Checkpoint Trainer::checkpoint(bool with_opt_state, bool is_epoch_done) const {
  Tree::Dict info = to_info(*run_, is_epoch_done);
  info["step"] = state_.step;
  info["trainer_seed"] = int64_t(seed_);
  if (state_.loss_scale)
    info["loss_scale"] = Tree::Dict{{"scale", state_.loss_scale->scale},
                                    {"good_steps", state_.loss_scale->good_steps}};
  return {state_.params, with_opt_state ? state_.opt_state : Tree(), std::move(info)};
}

void Trainer::save_ckpt(const std::string& ckpt_name, std::optional<int64_t> epoch_idx,
                        const SaveCkptOptions& options) {
  bool is_name =
      !ckpt_name.empty() && ckpt_name[0] != '.' && ckpt_name.find('/') == std::string::npos;
  require(is_name, "save_ckpt: ckpt_name = \"", ckpt_name, "\" is not a name of a folder");
  require(is_laid_out_,
          "save_ckpt: the parameters are not laid out over the processes yet: train, "
          "or call setup_running_step first");
  Checkpoint written = checkpoint(options.save_opt_state, epoch_idx.has_value());
  if (epoch_idx) written.info["epoch_idx"] = *epoch_idx;
  SaveCheckpointOptions how;
  how.float_dtype = options.float_dtype;
  how.pointer = deployer_->ckpts_dir() + "/last_ckpt.txt";
  deployer_->save_ckpt(deployer_->ckpts_dir() + "/" + ckpt_name, std::move(written), how);
}

void Trainer::resume_from(const Tree& last_ckpt_info) {
  *run_ = run_state_of(last_ckpt_info);
  if (last_ckpt_info.is_none()) return;
  is_resuming_ = true;
  const auto& info = last_ckpt_info.as<Tree::Dict>();
  auto seed = info.find("trainer_seed");
  if (seed != info.end()) seed_ = uint64_t(seed->second.as<int64_t>());
}

void Trainer::restore(const Checkpoint& checkpoint) {
  at::NoGradGuard no_grad;
  copy_values("parameter", checkpoint.params, state_.params);
  copy_values("optimizer state", checkpoint.opt_state, state_.opt_state);
  for (size_t i = 0; i < leaves_.size(); ++i)
    if (!updates_[i].is_same(leaves_[i]) &&
        !memory_of(updates_[i]).is_alias_of(memory_of(leaves_[i])))
      updates_[i].detach().copy_(leaves_[i].detach());
  if (store_) store_->release();
  state_.step = step_of(checkpoint.info, 0);
  state_.loss_scale = loss_scale_of(checkpoint.info, state_.loss_scale);
  resume_from(checkpoint.info);
}

}  // namespace redco
