// chain: runs several optimizers in turn.

#include <redco/error.h>
#include <redco/optim.h>

#include <memory>
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
    size_t n_updating = 0;
    for (size_t i = 0; i < optimizers_.size(); ++i) {
      require(optimizers_[i] != nullptr, "chain: entry ", i + 1, " is empty");
      Stage stage = optimizers_[i]->stage();
      if (stage == Stage::params) {
        require(n_updating++ == 0, "chain: entry ", i + 1, " of ", optimizers_.size(),
                " updates the parameters, as entry ", updating_ + 1, " does: only one may");
        updating_ = i;
      }
      require(stage != Stage::updated || n_updating == 1, "chain: entry ", i + 1, " of ",
              optimizers_.size(),
              " works on the updated parameters: it must follow the one that updates them (adamw, "
              "sgd, ...)");
      require(stage != Stage::gradients || n_updating == 0, "chain: entry ", i + 1, " of ",
              optimizers_.size(),
              " changes gradients: it must precede the one that updates the parameters");
    }
    require(n_updating == 1, "chain: none of its ", optimizers_.size(),
            " entries updates the parameters: add adamw, sgd, ...");
  }

  void check(const std::vector<NamedTensor>& params) const override {
    for (const auto& optimizer : optimizers_) optimizer->check(params);
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

  Stage stage() const override { return Stage::params; }

  bool trains(const std::string& name, const at::Tensor& param) const override {
    for (const auto& optimizer : optimizers_)
      if (!optimizer->trains(name, param)) return false;
    return true;
  }

  std::vector<double> learning_rates(int64_t step, const Tree& state) const override {
    return optimizers_[updating_]->learning_rates(step, state.as<Tree::List>().at(updating_));
  }

  void observe(const Metrics& metrics, Tree& state) const override {
    optimizers_[updating_]->observe(metrics, state.as<Tree::List>().at(updating_));
  }
  bool needs_metrics() const override { return optimizers_[updating_]->needs_metrics(); }

  void collect_averages(const Tree& state, Tree::Dict& averages) const override {
    const auto& states = state.as<Tree::List>();
    for (size_t i = 0; i < optimizers_.size() && i < states.size(); ++i)
      optimizers_[i]->collect_averages(states[i], averages);
  }

 private:
  std::vector<std::shared_ptr<Optimizer>> optimizers_;
  size_t updating_ = 0;  // the entry that updates the parameters
};

}  // namespace

std::shared_ptr<Optimizer> chain(std::vector<std::shared_ptr<Optimizer>> optimizers) {
  return std::make_shared<Chain>(std::move(optimizers));
}

}  // namespace redco
