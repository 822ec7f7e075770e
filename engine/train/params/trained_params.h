#pragma once

#include "frozen_params.h"
#include "gradient_reducer.h"
#include "shard_params.h"

#include <redco/deployer.h>
#include <redco/detail/zero3_store.h>
#include <redco/optim.h>
#include <redco/sharding_rules.h>
#include <redco/tree.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace redco::train {

/// A tree of parameters in training: the leaves of autograd, the optimizer's view of each, and the
/// movement of parameters and gradients between processes.
class TrainedParams {
 public:
  /// Takes over the tensors of `params` on `device`, and trains the floating-point ones for which
  /// `trains` is true. These are copied, unless nothing else holds them; tied weights
  /// stay tied. Throws Error if nothing is trained, or a parameter cannot be.
  TrainedParams(Tree params, std::shared_ptr<Deployer> deployer, at::Device device,
                const ParamFilter& trains);

  /// The masters, laid out over the processes after `lay_out`.
  const Tree& tree() const { return tree_; }
  /// The trained parameters, and their dotted paths.
  const std::vector<at::Tensor>& leaves() const { return leaves_; }
  const std::vector<std::string>& names() const { return names_; }
  /// The part of each leaf that an optimizer updates: all of it, or with ZeRO this process's part.
  const std::vector<at::Tensor>& optimizer_views() const { return views_; }
  at::Device device() const { return device_; }
  /// Null with one process, and before `lay_out`.
  GradientReducer* reducer() { return reducer_.get(); }

  /// Shards the parameters over the processes; see shard_params.h. Must be called before any step.
  /// After an error, such as one of `forward`, it can be called again.
  LayoutDecisions lay_out(const std::vector<ShardingRule>& rules, const TracedForward& forward);
  /// A tensor of an optimizer's state, at this path, on the device and in the placements of its
  /// parameter.
  at::Tensor laid_out_like_params(const std::string& path, at::Tensor state) const;

  /// Moves parameters that are not computed with, since they are cast to `dtype` for that, to the
  /// host; see redco::move_to_host.
  void move_to_host(at::ScalarType dtype);

  /// The gradients of the leaves, some of which may be undefined.
  std::vector<at::Tensor> gradients() const;
  void clear_gradients();
  /// Returns the gradients of the leaves and clears them.
  std::vector<at::Tensor> take_gradients();
  /// Gives the leaves these gradients, one for each; undefined ones clear it.
  void set_gradients(std::vector<at::Tensor> gradients);

  /// Must be called after an update: gathers the parameters of which ZeRO lets this process update
  /// a part.
  void refresh();
  /// Must be called at the end of a step: frees parameters that ZeRO 3 has gathered, and waits for
  /// those on their way.
  void release();
  /// Must be called before a step. After a failed step the processes may be at different steps:
  /// throws Error if they are.
  void rejoin(int64_t step);
  /// Copies the values of another tree. Throws Error if one is missing or has another shape.
  void restore(const Tree& params);

  /// The parameters that a checkpoint need not contain. Every process must call it.
  FrozenTensors frozen();

  /// A tree like the parameters': `values` at the leaves, undefined tensors elsewhere.
  Tree in_tree(const std::vector<at::Tensor>& values) const;

 private:
  at::Tensor optimizer_view(const at::Tensor& leaf, Placements& target) const;
  void gather_into_leaves(const std::vector<size_t>& leaves, const std::vector<Mesh::Dim>& dims);

  std::shared_ptr<Deployer> deployer_;
  at::Device device_;
  Tree tree_;
  FrozenParams frozen_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> leaves_;
  std::vector<at::Tensor> views_;
  std::shared_ptr<Zero3Store> store_;  // of parameters that ZeRO splits; null: none
  std::unique_ptr<GradientReducer> reducer_;
  int64_t reconnects_ = 0;  // the mesh's count at the last check
};

/// Copies the values of `from` to the tensors of `to`, which may be sharded. Throws Error, which
/// begins with `what`, if one is missing or has another shape.
void copy_values(const char* what, const Tree& from, const Tree& to);

}  // namespace redco::train
