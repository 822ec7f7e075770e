// chain: runs several optimizers in turn.

#include <redco/error.h>
#include <redco/optim.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace redco {

namespace {

class Chain : public Optimizer {
 public:
  explicit Chain(std::vector<std::shared_ptr<Optimizer>> optimizers)
      : optimizers_(std::move(optimizers)) {
    require(!optimizers_.empty(), "chain: it needs at least an optimizer such as adamw");
    for (size_t i = 0; i < optimizers_.size(); ++i) {
      require(optimizers_[i] != nullptr, "chain: entry ", i + 1, " is empty");
      bool is_last = i + 1 == optimizers_.size();
      require(optimizers_[i]->updates_params() == is_last, "chain: entry ", i + 1, " of ",
              optimizers_.size(),
              is_last ? " only changes gradients: the last one must update the parameters (adamw, "
                        "sgd, ...)"
                      : " updates the parameters: only the last one may");
    }
  }

  Tree init(const std::vector<NamedTensor>& params) const override {
    Tree::List states;
    for (const auto& optimizer : optimizers_) states.push_back(optimizer->init(params));
    return states;
  }

  void update(Update& update, Tree& state) const override {
    auto& states = state.as<Tree::List>();
    require(states.size() == optimizers_.size(), "chain: the state is a list of ", states.size(),
            ", the chain has ", optimizers_.size(), " entries");
    for (size_t i = 0; i < optimizers_.size(); ++i) optimizers_[i]->update(update, states[i]);
  }

  bool updates_params() const override { return true; }

  bool trains(const std::string& name) const override {
    for (const auto& optimizer : optimizers_)
      if (!optimizer->trains(name)) return false;
    return true;
  }

  std::optional<double> learning_rate(int64_t step) const override {
    return optimizers_.back()->learning_rate(step);
  }

 private:
  std::vector<std::shared_ptr<Optimizer>> optimizers_;
};

}  // namespace

std::shared_ptr<Optimizer> chain(std::vector<std::shared_ptr<Optimizer>> optimizers) {
  return std::make_shared<Chain>(std::move(optimizers));
}

}  // namespace redco
