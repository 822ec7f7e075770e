#pragma once

#include "trace.h"
#include "tracer.h"

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace redco {

/// A parameter whose layout is being decided.
struct TracedParameter {
  std::string name;
  std::vector<std::string> other_names;  ///< of a tied weight
  at::Tensor given;
  std::optional<Placement> placement = {};  ///< on mp; none: undecided
  std::string reason = "not used as the weight of a product or an embedding: whole";
  bool is_mended = false;      ///< a correction has decided
  bool is_embedding = false;   ///< rows of it are looked up
  bool is_multiplied = false;  ///< it is the weight of a product
};

/// Decides how parameters lie over mp while a forward pass runs on stand-ins for them: each where
/// it is first used, by what comes to it there. Watches this thread for as long as it lives.
class LayoutTracer final : public Tracer {
 public:
  LayoutTracer(std::vector<TracedParameter>& parameters, std::shared_ptr<const Mesh> mesh);
  ~LayoutTracer() override;

  /// The parameter as the forward pass sees it.
  at::Tensor stand_in(int parameter);

  void before(Call& call) override;
  void run(const Call& call, const Plan& plan, torch::jit::Stack& local) override;
  void after(const Call& call, const Plan& plan, c10::ArrayRef<c10::IValue> results) override;

  /// What turned out wrong, by parameter: the forward pass is to be watched again with it.
  struct Correction {
    Placement placement;
    std::string reason;
  };
  std::map<int, Correction> corrections() const;

 private:
  at::Tensor whole_like(const at::Tensor& tensor);
  void remember(const at::Tensor& tensor, int parameter);
  void note(const at::Tensor& tensor, const std::set<int>& sources, const std::set<int>& summed,
            int parameter);
  bool decide_as(TracedParameter& parameter, const at::Tensor& seen, Placement placement,
                 std::string reason);
  void decide(Call& call, size_t i, TracedParameter& parameter);
  bool comes_of_whole(const Call& call) const;
  void split_outputs(Call& call, size_t i, TracedParameter& parameter);
  void lay_out(Call& call, size_t i, const TracedParameter& parameter);
  void mend(const Call& call, size_t i, const std::set<int>& weights);

  std::vector<TracedParameter>& parameters_;
  std::shared_ptr<const Mesh> mesh_;
  int64_t n_;
  Tracer* previous_;
  std::unordered_map<const void*, int> origins_;  // of views of undecided parameters
  // Whose split a tensor's split comes from, and of one that is whole, whose sum it is.
  std::unordered_map<const void*, std::set<int>> sources_, summed_;
  std::set<const void*> of_whole_;  // what weights put out that a correction keeps whole
  std::map<int, Correction> mended_;
  std::set<int> needed_split_;     // parameters whose sum was needed split
  std::vector<at::Tensor> alive_;  // what the maps name
};

}  // namespace redco
