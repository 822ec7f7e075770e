// Decides the placements of parameters over mp while a forward pass runs on stand-ins.

#pragma once

#include "origin.h"
#include "pairs.h"
#include "streams.h"
#include "without_values.h"

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
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
  bool is_tried = false;       ///< the placement comes from a search
  bool was_corrected = false;  ///< the placement comes from a correction
  /// For a matrix of a low-rank adapter, or a stack of them: its role, and the indices of the
  /// adapted weight and of the adapter's other matrix.
  struct Adapter {
    bool is_first;  ///< has the same input as the weight: lora_A, or lora_B of a stack [n, in, out]
    int dim;        ///< not the rank: the inputs of the first matrix, the outputs of the other
    int weight, other;
    bool was_seen = false;  ///< in a product
  };
  std::optional<Adapter> adapter = {};

  /// Corrections leave it as it is.
  bool is_fixed() const { return is_by_rule || is_tried; }
};

/// The role of a parameter in products with weights that are chosen for each row.
struct ExpertWeight {
  int64_t number = -1;    ///< of the expert; -1: a stack of those of all
  int64_t n_experts = 0;  ///< 0: it is used in several ways
};

/// Decides the placements of parameters over mp by running a forward pass on stand-ins for them:
/// each at its first use, from the placements of the other arguments there. Observes this thread
/// while it exists.
class ForwardWatcher final : public WithoutValues {
 public:
  ForwardWatcher(std::vector<TracedParameter>& parameters, std::shared_ptr<const Mesh> mesh);

  /// The stand-in of a parameter, given to the forward pass.
  at::Tensor stand_in(int parameter);

  void before(Call& call) override;
  void after(const Call& call, const CallPlan& plan, c10::ArrayRef<c10::IValue> results) override;

  struct Correction {
    Placement placement;
    std::string reason;
  };
  /// Wrong decisions found, by parameter: repeat the forward pass with these placements.
  std::map<int, Correction> corrections() const;

  /// The parameters of which another placement may move less: what they split is gathered, split
  /// anew or summed within a product of activations; or it is the input of several weights that are
  /// split along their inputs, so that each of these needs a reduction; or it is a stack of weights
  /// that is split inside each.
  std::set<int> suspects() const;
  /// The first weights of pairs, which may be paired otherwise, and the embeddings.
  std::set<int> partners() const;
  /// The parameters that split one tensor which is gathered, or which several weights read: whole
  /// together, they may move less.
  std::set<std::set<int>> moved_together() const;
  const Streams& streams() const { return streams_; }
  const Pairs& pairs() const { return pairs_; }
  /// Splits of a parameter that views of its outputs have as dimensions.
  const std::map<int, std::vector<Placement>>& splits_in_views() const { return splits_in_views_; }
  /// The parameters that are weights of experts.
  const std::map<int, ExpertWeight>& experts() const { return experts_; }

 private:
  // The parameters that explain the layout of a tensor.
  struct Lineage {
    std::set<int> split;    // the parameters whose split makes the tensor split or partial
    std::set<int> summed;   // if it is replicated: the parameters whose partial sum it was
    bool of_whole = false;  // computed from outputs of weights that a correction replicates
    bool of_norm = false;   // split features of a norm, or computed from each of these
  };

  at::Tensor whole_like(const at::Tensor& tensor);
  void remember(const at::Tensor& tensor, Origin origin);
  bool is_of_parameters(const Call& call) const;
  void remember_made(const at::Tensor& tensor, const Call& call);
  void note(const at::Tensor& tensor, const Lineage& lineage);
  bool decide_as(TracedParameter& parameter, const TensorArgument& seen, const Placement& wanted,
                 std::string reason);
  void decide(Call& call, size_t i, TracedParameter& parameter);
  bool comes_of_whole(const Call& call) const;
  bool is_of_norm(const TensorArgument& argument) const;
  void split_outputs(Call call, size_t i, TracedParameter& parameter);
  void follow_weight(TracedParameter& parameter);
  void order_adapter(TracedParameter& parameter);
  void lay_out(Call& call, size_t i, const TracedParameter& parameter);
  void correct(const Call& call, size_t i, const std::set<int>& weights);
  void note_view(const Call& call, const std::set<int>& weights);
  void note_experts(const Call& call);
  void note_slice(const Call& call, const std::set<int>& weights);
  void correct_sliced(std::map<int, Correction>& all) const;

  std::vector<TracedParameter>& parameters_;
  int64_t n_;
  std::unordered_map<const void*, Origin> origins_;  // of parameters, their views and the like
  std::unordered_set<const void*> of_parameters_;    // computed from parameters alone
  std::unordered_map<const void*, Lineage> lineages_;
  std::vector<at::Tensor> alive_;  // keeps the tensors in these maps alive
  std::map<int, Correction> corrections_;
  // The cuts by slices that need the whole dimension along which a weight is split.
  struct Cuts {
    int64_t size = 0, step = 1;  // step: the least common multiple of the slices
    std::set<int64_t> positions;
  };
  std::map<int, Cuts> cuts_;
  std::set<int> moved_;  // parameters whose split is gathered or changed
  std::set<std::set<int>> moved_together_;
  std::set<int> stacks_, embeddings_;
  std::set<int> needed_split_;  // parameters whose sum is needed split
  Pairs pairs_;
  Streams streams_;
  std::map<int, std::vector<Placement>> splits_in_views_;
  std::map<int, ExpertWeight> experts_;
};

}  // namespace redco::sharding
