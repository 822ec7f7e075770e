// Decides which stage of a pipeline holds which parameters: consecutive blocks, with equal work.

#include "layout_search.h"
#include "traced_parameters.h"

#include "../../mesh/imagined.h"
#include "../stages/staged_calls.h"

#include <redco/detail/recomputing.h>
#include <redco/error.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace redco {

using namespace sharding;

namespace {

// Records the block of a forward pass in which each parameter meets the data, and the work of each
// block. Operators before the first block count as part of it, block 0. Operators after a block
// count as part of that block.
class BlockWatcher final : public WithoutValues {
 public:
  using WithoutValues::WithoutValues;

  at::Tensor stand_in(int parameter, const at::Tensor& given) {
    at::Tensor tensor =
        wrap(whole_meta(given), {}, mesh(), dense_geometry(given.sizes(), given.strides()));
    remember(tensor, {parameter});
    return tensor.set_requires_grad(given.requires_grad());
  }

  void before(Call& call) override {
    WithoutValues::before(call);
    if (shape_of_values_.empty() && has_shape_of_values(call)) shape_of_values_ = call.op.name;
    meets_data_ = std::ranges::any_of(call.tensors, [&](const TensorArgument& argument) {
      const bool is_number = !argument.impl && argument.tensor.dim() == 0;
      return !is_number && !parameters_of_.contains(argument.impl);
    });
    if (!meets_data_) return;
    for (const TensorArgument& argument : call.tensors)
      if (auto found = parameters_of_.find(argument.impl); found != parameters_of_.end())
        for (int parameter : found->second) uses_[parameter].insert(block());
  }

  void after(const Call& call, const CallPlan& plan, c10::ArrayRef<c10::IValue> results) override {
    WithoutValues::after(call, plan, results);
    if (work_.size() <= block()) work_.resize(block() + 1);
    work_[block()] += flops() - std::exchange(counted_, flops());
    if (meets_data_) return;
    std::set<int> parameters;
    for (const TensorArgument& argument : call.tensors)
      if (auto found = parameters_of_.find(argument.impl); found != parameters_of_.end())
        parameters.insert(found->second.begin(), found->second.end());
    auto keep = [&](const at::Tensor& tensor) { remember(tensor, parameters); };
    for (const c10::IValue& result : results) {
      if (result.isTensor())
        keep(result.toTensor());
      else if (result.isTensorList())
        std::ranges::for_each(result.toTensorVector(), keep);
    }
  }

  size_t n_blocks() const { return size_t(RecomputeBlocks::n_blocks() - first_); }
  /// By block, of the forward pass.
  std::vector<double> work() const { return work_; }
  /// The first operator whose result has a shape that depends on values; empty without one.
  const std::string& shape_of_values() const { return shape_of_values_; }
  /// The blocks that use each parameter.
  const std::map<int, std::set<size_t>>& uses() const { return uses_; }

 private:
  size_t block() const { return std::max<size_t>(n_blocks(), 1) - 1; }

  void remember(const at::Tensor& tensor, std::set<int> parameters) {
    if (!tensor.defined() || !sharded_impl(tensor) || parameters.empty()) return;
    parameters_of_[sharded_impl(tensor)] = std::move(parameters);
    alive_.push_back(tensor);
  }

  const int64_t first_ = RecomputeBlocks::n_blocks();
  bool meets_data_ = false;
  double counted_ = 0;
  std::string shape_of_values_;
  std::vector<double> work_;
  std::map<int, std::set<size_t>> uses_;
  std::unordered_map<const void*, std::set<int>>
      parameters_of_;              // of tensors that are computed from these parameters alone
  std::vector<at::Tensor> alive_;  // keeps the tensors of the map alive
};

// Returns the first block of each stage. Minimizes the work of the stage that has the most.
std::vector<size_t> even_parts(const std::vector<double>& work, size_t n_stages) {
  const size_t n = work.size();
  std::vector<double> sums(n + 1, 0);
  for (size_t i = 0; i < n; ++i) sums[i + 1] = sums[i] + work[i];
  constexpr double never = std::numeric_limits<double>::infinity();
  // most[k][i]: the most work of a stage if the first i blocks are in k stages. The last of these
  // stages begins with block from[k][i].
  std::vector<std::vector<double>> most(n_stages + 1, std::vector<double>(n + 1, never));
  std::vector<std::vector<size_t>> from(n_stages + 1, std::vector<size_t>(n + 1, 0));
  most[0][0] = 0;
  for (size_t k = 1; k <= n_stages; ++k)
    for (size_t i = k; i <= n; ++i)
      for (size_t first = k - 1; first < i; ++first) {
        const double here = std::max(most[k - 1][first], sums[i] - sums[first]);
        if (here < most[k][i]) most[k][i] = here, from[k][i] = first;
      }
  std::vector<size_t> firsts(n_stages);
  for (size_t k = n_stages, i = n; k > 0; --k) firsts[k - 1] = i = from[k][i];
  return firsts;
}

}  // namespace

StageDecisions decide_stages(const Tree& params, int64_t n_pipeline_stages,
                             int64_t n_chunks_per_stage, const TracedForward& forward) {
  StageDecisions decided{.n_chunks_per_stage = n_chunks_per_stage};
  const int64_t n_stages = n_pipeline_stages * n_chunks_per_stage;
  if (n_stages == 1 || !forward) return decided;
  std::string name = "n_pipeline_stages = " + std::to_string(n_pipeline_stages);
  if (n_chunks_per_stage > 1)
    name += ", n_chunks_per_stage = " + std::to_string(n_chunks_per_stage);
  at::NoGradGuard no_grad;
  std::map<const void*, int> places;
  std::vector<TracedParameter> parameters = parameters_of(params, places);
  WatchedForward traced = watched(params, places, forward, 1, parameters);
  BlockWatcher watcher(traced.mesh());
  const bool is_complete = [&] {
    at::AutoGradMode with_gradients(true);  // the function may compute some
    return traced.watch([&](int parameter) {
      return watcher.stand_in(parameter, parameters[size_t(parameter)].given);
    });
  }();
  require(is_complete, name,
          ": the stages are decided by a pass on tensors without values, which failed: see the "
          "warning before",
          watcher.shape_of_values().empty()
              ? ""
              : ". The shape of what " + watcher.shape_of_values() +
                    " returns depends on values: keep the shape, as torch.where or a mask does");
  std::vector<double> work = watcher.work();
  work.resize(watcher.n_blocks());
  const auto n_blocks = int64_t(work.size());
  const bool has_chunks = n_chunks_per_stage > 1;
  require(n_blocks >= n_stages, name, ": the function has ", n_blocks,
          n_blocks == 1 ? " block" : " blocks", " (redco.nn.block), and each ",
          has_chunks ? "of the " + std::to_string(n_stages) + " chunks" : std::string("stage"),
          " needs one",
          has_chunks || n_blocks == 1 ? "" : ": use at most " + std::to_string(n_blocks));
  const std::vector<size_t> firsts = even_parts(work, size_t(n_stages));
  auto stage_of_block = [&](size_t block) {
    return int64_t(std::ranges::upper_bound(firsts, block) - firsts.begin()) - 1;
  };
  for (size_t i = 0; i < work.size(); ++i) {
    const int64_t stage = stage_of_block(i);
    decided.stages.resize(size_t(stage) + 1);
    ++decided.stages.back().n_blocks;
    decided.stages.back().flops += work[i];
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    std::set<int64_t> users;
    if (auto found = watcher.uses().find(int(i)); found != watcher.uses().end())
      for (size_t block : found->second) users.insert(stage_of_block(block));
    if (users.size() > 1) decided.shared.push_back(parameters[i].name);
    // A scalar has no dimension to place on a rank, so it gets no stage.
    if (users.size() > 1 || parameters[i].given.dim() == 0) continue;
    const int64_t stage = users.empty() ? 0 : *users.begin();
    decided.stage_of[parameters[i].name] = stage;
    for (const std::string& name : parameters[i].other_names) decided.stage_of[name] = stage;
  }
  return decided;
}

}  // namespace redco
