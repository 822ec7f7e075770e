// The parameters of a Trainer, and their layout over the processes.

#include "trained_params.h"

#include "../../core/host_memory.h"
#include "gradient_reducer.h"
#include "shard_params.h"

#include <redco/detail/coalesced.h>
#include <redco/error.h>
#include <redco/moves.h>
#include <redco/quantized.h>
#include <redco/sharding.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <map>
#include <utility>

namespace redco::train {

namespace {

bool ends_with(const std::string& path, const std::string& name) {
  return path == name || (path.size() > name.size() && path.ends_with(name) &&
                          path[path.size() - name.size() - 1] == '.');
}

}  // namespace

TrainedParams::TrainedParams(Tree params, std::shared_ptr<Deployer> deployer, at::Device device,
                             const ParamFilter& trains)
    : deployer_(std::move(deployer)), device_(device) {
  // Given tensors and their replacements here, by storage, so that tied weights stay tied.
  std::multimap<const void*, std::pair<at::Tensor, at::Tensor>> seen;
  std::string other;  // the first tensor that cannot be trained
  const auto quantized = quantized_weights(params);
  tree_ = map_tensors(params, [&](const std::string& name, const at::Tensor& given) {
    require(given.defined(), "Trainer: parameter '", name, "' is undefined");
    auto [first, last] = seen.equal_range(memory_key(given));
    for (; first != last; ++first)
      if (is_same_tensor(first->second.first, given)) return first->second.second;
    require(!quantized.contains(name) || !trains(name, given), "Trainer: parameter '", name,
            "' is quantized and cannot be trained. Train adapters on it (redco.lora.add, "
            "redco.lora.freeze_base), freeze it (redco.optim.freeze), or make it floats "
            "(redco.quant.dequantize)");
    bool is_sole_owner =
        given.use_count() == 1 && given.has_storage() && given.storage().use_count() == 1;
    at::Tensor own = given.detach();
    bool is_moved = deployer_->device() && given.device() != device_;
    if (is_moved) own = own.to(device_);
    if (!given.is_floating_point() && other.empty())
      other = "; '" + name + "' has the type " + c10::toString(given.scalar_type());
    if (given.is_floating_point() && trains(name, given)) {
      require(given.layout() == at::kStrided, "Trainer: parameter '", name, "' is ", given.layout(),
              "; only dense tensors can be trained");
      // The optimizers update it in place as one dense block of memory. With several processes,
      // each process copies its part once the part is known.
      bool is_own = is_sole_owner || is_moved || deployer_->mesh()->world().size() > 1;
      if (!is_own || !own.is_non_overlapping_and_dense()) own = own.clone();
      own.set_requires_grad(true);
      names_.push_back(name);
      leaves_.push_back(own);
    } else {
      frozen_.add(name, given, own);
    }
    seen.emplace(memory_key(given), std::pair(given, own));
    return own;
  });
  require(
      !leaves_.empty(),
      "Trainer: nothing to train: params has no floating-point tensor that the optimizer trains",
      other);
  views_ = leaves_;
}

LayoutDecisions TrainedParams::lay_out(const std::vector<ShardingRule>& rules,
                                       const TracedForward& forward) {
  const std::shared_ptr<Mesh>& mesh = deployer_->mesh();
  LaidOut laid_out = train::lay_out(tree_, *deployer_, rules, forward);
  tree_ = std::move(laid_out.params);
  store_ = std::move(laid_out.store);
  auto params = named_tensors(tree_);
  frozen_.replaced(params);
  std::map<std::string, at::Tensor> by_name(params.begin(), params.end());
  at::NoGradGuard no_grad;
  std::vector<Placements> targets;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    leaves_[i] = by_name.at(names_[i]);
    targets.push_back(placements_of(leaves_[i]));
    views_[i] = optimizer_view(leaves_[i], targets.back());
  }
  if (mesh->world().size() > 1) {
    reducer_ = std::make_unique<GradientReducer>(leaves_, targets);
    reconnects_ = mesh->reconnects();
  }
  return std::move(laid_out.decisions);
}

// Sets `target` to the view's placements.
at::Tensor TrainedParams::optimizer_view(const at::Tensor& leaf, Placements& target) const {
  int64_t zero = deployer_->zero();
  if (zero == 3) return is_stored(leaf) ? view_of_part(leaf, target) : leaf;
  auto part = zero > 0 ? zero_placements(leaf, *deployer_) : std::nullopt;
  if (!part) return leaf;
  target = *part;
  at::Tensor view = view_of_part(leaf, target);
  // The optimizers need each parameter as one dense block of memory.
  return memory_of(view).is_non_overlapping_and_dense() ? view : view.contiguous();
}

at::Tensor TrainedParams::laid_out_like_params(const std::string& path, at::Tensor state) const {
  if (is_sharded(state)) return state;
  if (deployer_->device() && state.device() != device_) state = state.to(device_);
  if (deployer_->mesh()->world().size() == 1) return state;
  for (size_t i = 0; i < names_.size(); ++i)
    if (ends_with(path, names_[i]) && state.sizes() == views_[i].sizes())
      return shard(state, mesh_of(views_[i]), placements_of(views_[i]));
  return state;
}

void TrainedParams::move_to_host(at::ScalarType dtype) {
  for (size_t i = 0; i < leaves_.size(); ++i)
    if (leaves_[i].scalar_type() != dtype)
      for (const at::Tensor& tensor : {leaves_[i], views_[i]})
        redco::move_to_host(memory_of(tensor));
}

std::vector<at::Tensor> TrainedParams::gradients() const {
  std::vector<at::Tensor> grads;
  grads.reserve(leaves_.size());
  for (const at::Tensor& leaf : leaves_) grads.push_back(leaf.grad());
  return grads;
}

void TrainedParams::clear_gradients() {
  for (at::Tensor& leaf : leaves_) leaf.mutable_grad().reset();
}

std::vector<at::Tensor> TrainedParams::take_gradients() {
  std::vector<at::Tensor> grads;
  grads.reserve(leaves_.size());
  for (at::Tensor& leaf : leaves_) grads.push_back(std::move(leaf.mutable_grad()));
  return grads;
}

void TrainedParams::release() {
  if (store_) store_->release();
}

void TrainedParams::set_gradients(std::vector<at::Tensor> gradients) {
  for (size_t i = 0; i < leaves_.size(); ++i) leaves_[i].mutable_grad() = std::move(gradients[i]);
}

void TrainedParams::refresh() {
  at::NoGradGuard no_grad;
  release();
  int64_t zero = deployer_->zero();
  if (zero == 0 || zero == 3 || !reducer_) return;
  Moving moving(Move::parameters, "zero");
  std::map<std::pair<at::ScalarType, std::vector<Mesh::Dim>>, std::vector<size_t>> shared;
  for (size_t i = 0; i < leaves_.size(); ++i)
    if (!views_[i].is_same(leaves_[i]))
      shared[{leaves_[i].scalar_type(), zero_dims(leaves_[i], *deployer_->mesh())}].push_back(i);
  for (const auto& [alike, leaves] : shared) gather_into_leaves(leaves, alike.second);
}

// In buckets: a buffer for all would be as large as the parameters.
void TrainedParams::gather_into_leaves(const std::vector<size_t>& leaves,
                                       const std::vector<Mesh::Dim>& dims) {
  std::vector<std::vector<size_t>> buckets;
  size_t bytes = 0;
  for (size_t leaf : leaves) {
    size_t own = leaves_[leaf].nbytes();
    if (buckets.empty() || bytes + own > bucket_bytes) {
      buckets.emplace_back();
      bytes = 0;
    }
    bytes += own;
    buckets.back().push_back(leaf);
  }
  auto start = [&](const std::vector<size_t>& bucket) {
    std::vector<at::Tensor> parts;
    for (size_t leaf : bucket) parts.push_back(views_[leaf]);
    return start_gather(parts, dims);
  };
  CoalescedChange next = start(buckets[0]);
  for (size_t i = 0; i < buckets.size(); ++i) {
    CoalescedChange now = std::move(next);
    if (i + 1 < buckets.size()) next = start(buckets[i + 1]);
    std::vector<at::Tensor> whole = now.wait();
    for (size_t k = 0; k < whole.size(); ++k) leaves_[buckets[i][k]].detach().copy_(whole[k]);
  }
}

void TrainedParams::rejoin(int64_t step) {
  Mesh& mesh = *deployer_->mesh();
  if (!reducer_ || std::exchange(reconnects_, mesh.reconnects()) == mesh.reconnects()) return;
  at::Tensor steps = at::tensor({step, -step}, at::kLong).to(mesh.device());
  steps = mesh.world().all_reduce(steps, ReduceOp::max).cpu();
  auto newest = steps[0].item<int64_t>(), oldest = -steps[1].item<int64_t>();
  require(newest == oldest, "the processes were interrupted between steps: some are at step ",
          oldest, ", some at ", newest,
          "; give the Trainer a state they share, such as that of a checkpoint");
  reducer_->forget_plan();
  refresh();
}

void TrainedParams::restore(const Tree& params) {
  at::NoGradGuard no_grad;
  copy_values("parameter", params, tree_);
  for (size_t i = 0; i < leaves_.size(); ++i)
    if (!views_[i].is_same(leaves_[i]) && !memory_of(views_[i]).is_alias_of(memory_of(leaves_[i])))
      views_[i].detach().copy_(leaves_[i].detach());
  release();
}

FrozenTensors TrainedParams::frozen() {
  return frozen_.unchanged(named_tensors(tree_), *deployer_->mesh());
}

Tree TrainedParams::in_tree(const std::vector<at::Tensor>& values) const {
  std::map<std::string, at::Tensor> by_name;
  for (size_t i = 0; i < names_.size(); ++i) by_name[names_[i]] = values[i];
  return map_tensors(tree_, [&](const std::string& name, const at::Tensor&) {
    auto found = by_name.find(name);
    return found == by_name.end() ? at::Tensor() : found->second;
  });
}

void copy_values(const char* what, const Tree& from, const Tree& to) {
  std::map<std::string, at::Tensor> values;
  for (auto& [name, tensor] : named_tensors(from)) values[name] = tensor;
  for (const auto& [name, tensor] : named_tensors(to)) {
    auto found = values.find(name);
    require(found != values.end() && found->second.sizes() == tensor.sizes(), what, " '", name,
            "' is not in the checkpoint as it is here");
    // A frozen tensor may be its own value, and must then not count as written.
    bool is_itself = tensor.is_same(found->second);
    if (tensor.defined() && !is_itself) tensor.detach().copy_(found->second);
  }
}

}  // namespace redco::train
