// Searches for the layout of the parameters that moves the least bytes.

#pragma once

#include "forward_watcher.h"

#include <redco/sharding_rules.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace redco::sharding {

/// "h.0.attn.weight" and "h.1.attn.weight" are of one kind, "h.*.attn.weight".
std::string with_stars(const std::string& name);

/// The bytes of the largest part of a parameter.
int64_t bytes_of_part(const at::Tensor& parameter, const Placement& placement, int64_t n_ranks);

/// A forward pass that is traced repeatedly.
class WatchedForward {
 public:
  /// places: the indices of the parameters, by the tensors of `params`.
  WatchedForward(const Tree& params, std::map<const void*, int> places,
                 const TracedForward& forward, std::shared_ptr<Mesh> mesh)
      : params_(params), places_(std::move(places)), forward_(forward), mesh_(std::move(mesh)) {}

  struct Layout {
    std::vector<TracedParameter> parameters;
    bool is_complete = false;                    ///< the forward pass ran to its end
    std::set<int> suspects = {}, partners = {};  ///< see ForwardWatcher
    std::set<std::set<int>> pairs = {}, moved_together = {};
    std::vector<int> sources_of_streams = {};  ///< see Streams
    std::map<int, std::vector<Placement>> splits_in_views = {};
    std::map<int, ExpertWeight> experts = {};
  };

  /// The placements that follow from the parameters already decided.
  Layout follow(std::vector<TracedParameter> decided);

  /// Whether the steps that `cost` traces are sequence parallel.
  bool is_sequence_parallel = false;

  /// Returns what a rank sends and computes in a step, forward and backward, with these placements.
  /// Nullopt if the step does not run without values.
  struct StepCost {
    double bytes = 0;
    int64_t collectives = 0;
    double flops = 0;  ///< of products
  };
  std::optional<StepCost> cost(const std::vector<TracedParameter>& parameters);

  /// Runs it on what `stand_in` gives for each parameter. Returns whether it completed: some fail
  /// only on tensors without values or gradients; others fail in any case, and then the error of a
  /// plain run is thrown, which is clearer.
  bool watch(const std::function<at::Tensor(int parameter)>& stand_in);

  std::shared_ptr<const Mesh> mesh() const { return mesh_; }
  /// The operators called in all traces.
  int64_t n_calls() const { return n_calls_; }
  int64_t n_ranks() const { return mesh_->size(Mesh::mp); }

 private:
  Tree copies() const;
  Tree stand_ins(const std::function<at::Tensor(int parameter)>& make) const;

  const Tree& params_;
  std::map<const void*, int> places_;
  const TracedForward& forward_;
  std::shared_ptr<Mesh> mesh_;
  bool runs_alone_ = false;
  int64_t n_calls_ = 0;
};

/// Starts with what follows from the operators. Then tries other placements of the parameters that
/// may move less or be split, all of one kind together, and keeps what is better.
std::vector<TracedParameter> least_moving_layout(WatchedForward& forward,
                                                 std::vector<TracedParameter> decided);

}  // namespace redco::sharding
