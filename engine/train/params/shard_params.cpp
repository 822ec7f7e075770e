// Lays parameters out over the processes of a run.

#include "shard_params.h"

#include "../../optim/log_actions.h"

#include <redco/detail/read_whole.h>
#include <redco/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace redco::train {

namespace {

// The sum of some values at both ends, so that little of a mapped file is read.
at::Tensor sum_of_ends(const at::Tensor& param) {
  at::Tensor values = param.detach().reshape({-1});
  int64_t count = std::min<int64_t>(256, values.numel());
  at::Tensor ends = at::cat({values.slice(0, 0, count), values.slice(0, -count)});
  return ends.to(at::kDouble).abs().sum();
}

// Throws Error unless all processes created the same parameters: different ones would train
// silently to nonsense.
void check_alike(const Tree& params, const Mesh& mesh) {
  std::vector<NamedTensor> named = named_tensors(params);
  std::erase_if(named, [](const NamedTensor& param) { return is_sharded(param.second); });
  std::vector<at::Tensor> sums;
  for (const auto& [name, param] : named) sums.push_back(sum_of_ends(param));
  if (sums.empty()) return;
  at::Tensor own = at::stack(sums).to(mesh.device());
  at::Tensor most = mesh.world().all_reduce(own.clone(), ReduceOp::max);
  at::Tensor least = mesh.world().all_reduce(own.clone(), ReduceOp::min);
  at::Tensor differs = (most - least).gt(most * 1e-6);
  for (size_t i = 0; i < named.size(); ++i)
    require(!differs[int64_t(i)].item<bool>(), "Parameter '", named[i].first,
            "' is not the same on all processes. Make parameters with a generator that is: "
            "deployer:gen_rng(), or one seeded alike everywhere");
}

// Whether a mesh dimension of the data, other than that of experts, splits the tensor.
bool is_split_on_data(const at::Tensor& tensor) {
  Placements placements = placements_of(tensor);
  return std::ranges::any_of(Mesh::dims_of(Mesh::data), [&](Mesh::Dim dim) {
    return placements[dim].is_sharded() && !Mesh::has(dim, Mesh::expert);
  });
}

// Returns the placements of a parameter: `on_model` over the model shards, and the placement of its
// experts if it is one of experts.
Placements with_experts(const Placement& on_model, const std::map<std::string, Placement>& experts,
                        const std::string& name) {
  Placements placements = placements_on(Mesh::model, on_model);
  auto found = experts.find(name);
  const bool is_taken = on_model.is_sharded() && on_model.dim == 0;
  // If both split the experts, each model shard has some experts of a rank, and nothing can compute
  // with them.
  if (found == experts.end() || (is_taken && !found->second.is_on_rank())) return placements;
  placements[Mesh::dim_of(Mesh::expert)] = found->second;
  return placements;
}

// The same tensor in a separate storage that holds nothing else.
at::Tensor with_own_memory(const at::Tensor& param) {
  const at::Tensor& local = memory_of(param);
  bool is_own = local.storage().use_count() == 1 && local.nbytes() == local.storage().nbytes();
  if (is_own) return param;
  return from_local(local.clone(), mesh_of(param), placements_of(param), param.sizes());
}

}  // namespace

LaidOut lay_out(const Tree& params, const Deployer& deployer,
                const std::vector<ShardingRule>& rules, const TracedForward& forward) {
  const std::shared_ptr<Mesh>& mesh = deployer.mesh();
  LaidOut result{
      params,
      {decide_sharding(params, mesh->size(Mesh::model), rules, forward, mesh->sequence_parallel()),
       {}},
      nullptr};
  if (mesh->world().size() == 1) return result;
  log_params(named_tensors(params));
  check_alike(params, *mesh);
  std::map<std::string, Placement> decided;
  for (const ShardingDecision& decision : result.decisions.over_model)
    decided[decision.name] = decision.placement;
  const auto experts = decide_experts(params, mesh->size(Mesh::expert), forward);
  const StageDecisions& stages = result.decisions.over_stages =
      decide_stages(params, mesh->size(Mesh::pipeline), mesh->n_chunks_per_stage(), forward);

  at::NoGradGuard no_grad;
  std::vector<at::Tensor> stored;
  std::vector<std::string> stored_names;
  std::vector<std::vector<Mesh::Dim>> stored_dims;
  std::map<const void*, at::Tensor> seen;
  result.params = map_tensors(params, [&](const std::string& name, const at::Tensor& whole) {
    at::Tensor& param = seen[whole.unsafeGetTensorImpl()];
    if (param.defined()) return param;
    // A parameter of another Deployer's mesh is gathered over that mesh.
    at::Tensor source = mesh_of(whole) == mesh ? whole : full_to_read(whole);
    Placements placements = with_experts(decided[name], experts, name);
    if (auto stage = stages.stage_of.find(name); stage != stages.stage_of.end())
      placements[Mesh::dim_of(Mesh::pipeline)] = Placement::on_rank(stage->second);
    param = shard_to_read(source, mesh, placements).detach();
    auto part = deployer.zero() == 3 ? zero_placements(param, deployer) : std::nullopt;
    if (part) stored_dims.push_back(zero_dims(param, *mesh));
    if (part) param = redistribute(param, *part).detach();
    // Trained parameters are changed in place.
    if (whole.requires_grad()) param = with_own_memory(param).set_requires_grad(true);
    if (part) {
      stored.push_back(param);
      stored_names.push_back(name);
    }
    return param;
  });
  if (!stored.empty())
    result.store = Zero3Store::make(stored, blocks_by_name(stored_names), stored_dims);
  return result;
}

bool depends_on_use(const Mesh& mesh) {
  return mesh.size(Mesh::model) > 1 || mesh.size(Mesh::expert) > 1 || mesh.size(Mesh::pipeline) > 1;
}

bool is_laid_out(const Tree& params, const Deployer& deployer) {
  const std::shared_ptr<Mesh>& mesh = deployer.mesh();
  if (mesh->world().size() == 1) return true;
  auto named = named_tensors(params);
  return std::all_of(named.begin(), named.end(), [&](const NamedTensor& param) {
    return mesh_of(param.second) == mesh &&
           (!is_split_on_data(param.second) || is_stored(param.second));
  });
}

std::vector<Mesh::Dim> zero_dims(const at::Tensor& param, const Mesh& mesh) {
  std::vector<Mesh::Dim> dims = Mesh::dims_of(Mesh::zero);
  const Placements now = placements_of(param);
  std::erase_if(dims, [&](Mesh::Dim dim) { return now[dim].is_sharded() || mesh.size(dim) == 1; });
  return dims;
}

std::optional<Placements> zero_placements(const at::Tensor& param, const Deployer& deployer) {
  int64_t n_ranks = 1;
  const std::vector<Mesh::Dim> dims = zero_dims(param, *deployer.mesh());
  for (Mesh::Dim dim : dims) n_ranks *= deployer.mesh()->size(dim);
  if (n_ranks == 1 || param.numel() < deployer.zero_min_size()) return std::nullopt;
  Placements now = placements_of(param);
  for (int64_t dim = 0; dim < param.dim(); ++dim) {
    bool is_taken = std::ranges::any_of(
        now, [&](const Placement& other) { return other.is_sharded() && other.dim == dim; });
    if (is_taken || param.size(dim) < n_ranks) continue;
    for (Mesh::Dim split : dims) now[split] = Placement::shard(dim);
    return now;
  }
  return std::nullopt;
}

}  // namespace redco::train
