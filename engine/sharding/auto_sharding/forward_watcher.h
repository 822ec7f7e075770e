#pragma once

#include "../../nn/training_kernels.h"
#include "../execution.h"
#include "trace.h"

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace redco::sharding {

/// A parameter whose layout is being decided.
struct TracedParameter {
  std::string name;
  std::vector<std::string> other_names;  ///< of a tied weight
  at::Tensor given;
  std::optional<Placement> placement = {};  ///< on mp; none: undecided
  std::string reason = "the function that was watched does not use it: whole";
  bool is_mended = false;      ///< a correction has decided
  bool is_embedding = false;   ///< rows of it are looked up
  bool is_multiplied = false;  ///< it is the weight of a product
  /// Of a low-rank adapter's matrices: where the weight is beside which they lie, and the other
  /// one.
  struct Beside {
    bool is_first;  ///< the one that takes in what the weight does
    int weight, other;
  };
  std::optional<Beside> beside = {};
};

/// Decides how parameters lie over mp while a forward pass runs on stand-ins for them: each where
/// it is first used, by what comes to it there. Watches this thread for as long as it lives.
class ForwardWatcher final : public Execution {
 public:
  ForwardWatcher(std::vector<TracedParameter>& parameters, std::shared_ptr<const Mesh> mesh);

  /// Nothing is watched for as long as it lives.
  class Pause {
   public:
   private:
    WithExecution on_parts_{nullptr};
  };

  /// The parameter as the forward pass sees it.
  at::Tensor stand_in(int parameter);

  bool has_values() const override { return false; }
  void before(Call& call) override;
  void run(const Call& call, const Plan& plan, torch::jit::Stack& local) override;
  void after(const Call& call, const Plan& plan, c10::ArrayRef<c10::IValue> results) override;

  struct Correction {
    Placement placement;
    std::string reason;
  };
  /// What turned out wrong, by parameter: the forward pass is to be watched again with it.
  std::map<int, Correction> corrections() const;

  /// What one rank sends, in bytes.
  double bytes_moved() const { return bytes_moved_; }
  /// Parameters whose split outputs several weights take in by their inputs, so that all of those
  /// put out sums.
  std::set<std::set<int>> shared_sources() const;

 private:
  // Where a tensor comes from.
  struct Lineage {
    std::set<int> split;    // the parameters that its split, or its being a sum, is due to
    std::set<int> summed;   // of a whole tensor: those whose sum it was
    bool of_whole = false;  // from the outputs of weights that a correction keeps whole
  };

  at::Tensor whole_like(const at::Tensor& tensor);
  void remember(const at::Tensor& tensor, int parameter);
  void note(const at::Tensor& tensor, const Lineage& lineage);
  bool decide_as(TracedParameter& parameter, const at::Tensor& seen, Placement placement,
                 std::string reason);
  void decide(Call& call, size_t i, TracedParameter& parameter);
  bool comes_of_whole(const Call& call) const;
  void split_outputs(Call call, size_t i, TracedParameter& parameter);
  void follow_weight(TracedParameter& parameter);
  void lay_out(Call& call, size_t i, const TracedParameter& parameter);
  void mend(const Call& call, size_t i, const std::set<int>& weights);

  std::vector<TracedParameter>& parameters_;
  std::shared_ptr<const Mesh> mesh_;
  int64_t n_;
  std::unordered_map<const void*, int> origins_;  // of parameters and their views
  std::unordered_map<const void*, Lineage> lineages_;
  std::vector<at::Tensor> alive_;  // what these maps name
  std::map<int, Correction> mended_;
  std::set<int> needed_split_;                      // parameters whose sum was needed split
  std::map<std::set<int>, std::set<int>> readers_;  // weights split along inputs, by their source
  double bytes_moved_ = 0;
  TrainingKernels training_kernels_;
  WithExecution watching_{this};
};

}  // namespace redco::sharding
