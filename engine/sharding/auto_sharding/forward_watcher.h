// Decides the placements of parameters over mp while a forward pass runs on stand-ins.

#pragma once

#include "../../kernels/training_kernels.h"
#include "../call/execution.h"

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace redco::sharding {

/// A parameter whose placement is being decided.
struct TracedParameter {
  std::string name;
  std::vector<std::string> other_names;  ///< further names of a tied weight
  at::Tensor given;
  std::optional<Placement> placement = {};  ///< on mp; nullopt while undecided
  std::string reason = "the traced function does not use it: whole";
  bool is_by_rule = false;     ///< the user decided the placement
  bool was_corrected = false;  ///< the placement comes from a correction
  bool is_embedding = false;   ///< its rows are looked up
  bool is_multiplied = false;  ///< it is the weight of a product
  /// If not empty: why its outputs must not be split. Its inputs may be.
  std::string why_outputs_whole = {};
  /// For a matrix of a low-rank adapter: its role, and the indices of the adapted weight and of the
  /// adapter's other matrix.
  struct Adapter {
    bool is_first;  ///< lora_A, which has the same input as the weight
    int weight, other;
  };
  std::optional<Adapter> adapter = {};
};

/// Decides the placements of parameters over mp by running a forward pass on stand-ins for them:
/// each at its first use, from the placements of the other arguments there. Observes this thread
/// while it exists.
class ForwardWatcher final : public Execution {
 public:
  ForwardWatcher(std::vector<TracedParameter>& parameters, std::shared_ptr<const Mesh> mesh);

  /// The stand-in of a parameter, given to the forward pass.
  at::Tensor stand_in(int parameter);

  bool has_values() const override { return false; }
  std::shared_ptr<const Mesh> mesh() const override { return mesh_; }
  void before(Call& call) override;
  void run(const Call& call, const CallPlan& plan, torch::jit::Stack& local) override;
  void after(const Call& call, const CallPlan& plan, c10::ArrayRef<c10::IValue> results) override;

  struct Correction {
    Placement placement;
    std::string reason;
  };
  /// Wrong decisions found, by parameter: repeat the forward pass with these placements.
  std::map<int, Correction> corrections() const;

  /// The bytes that one rank sends.
  double bytes_moved() const { return bytes_moved_; }
  /// Sets of parameters whose split outputs are the input of several weights that are split along
  /// their inputs, so that each of these weights needs a reduction.
  std::set<std::set<int>> shared_sources() const;

 private:
  // The parameters that the layout of a tensor goes back to.
  struct Lineage {
    std::set<int> split;    // why it is split or partial: the split of these parameters
    std::set<int> summed;   // replicated tensor: the parameters whose partial sum it was
    bool of_whole = false;  // computed from outputs of weights that a correction replicates
  };

  at::Tensor whole_like(const at::Tensor& tensor);
  void imagine(Call& call) const;
  void remember(const at::Tensor& tensor, int parameter);
  void note(const at::Tensor& tensor, const Lineage& lineage);
  bool decide_as(TracedParameter& parameter, const at::Tensor& seen, Placement placement,
                 std::string reason);
  void decide(Call& call, size_t i, TracedParameter& parameter);
  bool comes_of_whole(const Call& call) const;
  void split_outputs(Call call, size_t i, TracedParameter& parameter);
  void follow_weight(TracedParameter& parameter);
  void lay_out(Call& call, size_t i, const TracedParameter& parameter);
  void correct(const Call& call, size_t i, const std::set<int>& weights);
  void note_slice(const Call& call, const std::set<int>& weights);
  void correct_sliced(std::map<int, Correction>& all) const;

  std::vector<TracedParameter>& parameters_;
  std::shared_ptr<const Mesh> mesh_;
  int64_t n_;
  std::unordered_map<const void*, int> origins_;  // of parameters and their views
  std::unordered_map<const void*, Lineage> lineages_;
  std::vector<at::Tensor> alive_;  // keeps the tensors in these maps alive
  std::map<int, Correction> corrections_;
  std::set<int> needed_split_;  // parameters whose sum was needed split
  // Where slices that need all of it cut the dimension that a weight's split is on.
  struct Cuts {
    int64_t size = 0, step = 1;  // step: the least common multiple of the slices
    std::set<int64_t> positions;
  };
  std::map<int, Cuts> cuts_;
  std::map<std::set<int>, std::set<int>>
      readers_;  // weights split along inputs, by the source of the input
  double bytes_moved_ = 0;
  kernels::TrainingKernels training_kernels_;
  WithExecution watching_{this};
};

}  // namespace redco::sharding
