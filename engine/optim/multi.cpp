// multi: several optimizers on one tree.

#include <redco/error.h>
#include <redco/optim.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace redco {

namespace {

class Multi : public Optimizer {
 public:
  explicit Multi(std::vector<OptimizerOf> entries) : entries_(std::move(entries)) {
    require(!entries_.empty(), "multi: it needs at least one entry {pattern, optimizer}");
    for (size_t i = 0; i < entries_.size(); ++i)
      require(!entries_[i].optimizer || entries_[i].optimizer->stage() == Stage::params,
              "multi: the optimizer of entry ", i + 1, ", ", entries_[i].label,
              ", does not update the parameters: chain it with one that does (adamw, sgd, ...)");
  }

  void check(const std::vector<NamedTensor>& params) const override {
    std::vector<std::vector<NamedTensor>> own = by_entry(params);
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (own[i].empty()) {
        std::string names;
        for (size_t j = 0; j < params.size() && j < 3; ++j) names += " '" + params[j].first + "'";
        fail("multi: entry ", i + 1, ", ", entries_[i].label,
             ", selects no parameter that no earlier entry selects; the names begin with", names);
      }
      if (entries_[i].optimizer) entries_[i].optimizer->check(own[i]);
    }
  }

  Tree init(const std::vector<NamedTensor>& params) const override {
    std::vector<std::vector<NamedTensor>> own = by_entry(params);
    Tree::List states;
    for (size_t i = 0; i < entries_.size(); ++i)
      states.push_back(entries_[i].optimizer ? entries_[i].optimizer->init(own[i])
                                             : Tree(Tree::Dict{}));
    return states;
  }

  void update(Update& update, Tree& state) const override {
    auto& states = state.as<Tree::List>();
    require(states.size() == entries_.size(), "multi: the state is a list of ", states.size(),
            ", there are ", entries_.size(), " entries");
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (!entries_[i].optimizer) continue;
      Update& part = update.part(&entries_[i], [&] {
        std::vector<size_t> members;
        for (size_t j = 0; j < update.params.size(); ++j)
          if (entry_of(update.names[j], update.params[j]) == i) members.push_back(j);
        return members;
      });
      if (!part.params.empty()) entries_[i].optimizer->update(part, states[i]);
    }
  }

  Stage stage() const override { return Stage::params; }

  bool trains(const std::string& name, const at::Tensor& param) const override {
    const auto& optimizer = entries_[entry_of(name, param)].optimizer;
    return optimizer && optimizer->trains(name, param);
  }

  std::vector<double> learning_rates(int64_t step, const Tree& state) const override {
    const auto& states = state.as<Tree::List>();
    std::vector<double> all;
    for (size_t i = 0; i < entries_.size() && i < states.size(); ++i)
      if (entries_[i].optimizer)
        for (double rate : entries_[i].optimizer->learning_rates(step, states[i]))
          all.push_back(rate);
    return all;
  }

  void observe(const Metrics& metrics, Tree& state) const override {
    auto& states = state.as<Tree::List>();
    for (size_t i = 0; i < entries_.size() && i < states.size(); ++i)
      if (entries_[i].optimizer) entries_[i].optimizer->observe(metrics, states[i]);
  }
  bool needs_metrics() const override {
    return std::any_of(entries_.begin(), entries_.end(), [](const auto& entry) {
      return entry.optimizer && entry.optimizer->needs_metrics();
    });
  }

  void collect_averages(const Tree& state, Tree::Dict& averages) const override {
    const auto& states = state.as<Tree::List>();
    for (size_t i = 0; i < entries_.size() && i < states.size(); ++i)
      if (entries_[i].optimizer) entries_[i].optimizer->collect_averages(states[i], averages);
  }

 private:
  size_t entry_of(const std::string& name, const at::Tensor& param) const {
    std::string labels;
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (!entries_[i].selects || entries_[i].selects(name, param)) return i;
      labels += (i == 0 ? "" : ", ") + entries_[i].label;
    }
    fail("multi: no entry selects the parameter '", name, "'; the entries are ", labels,
         ". End with one for the rest: {\"*\", optimizer} or {\"*\", \"frozen\"}");
  }

  std::vector<std::vector<NamedTensor>> by_entry(const std::vector<NamedTensor>& params) const {
    std::vector<std::vector<NamedTensor>> own(entries_.size());
    for (const auto& param : params) own[entry_of(param.first, param.second)].push_back(param);
    return own;
  }

  std::vector<OptimizerOf> entries_;
};

}  // namespace

std::shared_ptr<Optimizer> multi(std::vector<OptimizerOf> optimizers) {
  return std::make_shared<Multi>(std::move(optimizers));
}

}  // namespace redco
