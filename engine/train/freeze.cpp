// freeze: trains only some of the parameters.

#include <redco/error.h>
#include <redco/optim.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace redco {

namespace {

class Freeze : public Optimizer {
 public:
  Freeze(std::shared_ptr<Optimizer> optimizer, std::function<bool(const std::string&)> frozen)
      : optimizer_(std::move(optimizer)), frozen_(std::move(frozen)) {
    require(optimizer_ != nullptr, "freeze: the optimizer is missing");
    require(bool(frozen_), "freeze: the function that selects the frozen parameters is missing");
  }

  Tree init(const std::vector<NamedTensor>& params) const override {
    std::vector<NamedTensor> trained;
    for (const auto& param : params)
      if (trains(param.first)) trained.push_back(param);
    return optimizer_->init(trained);
  }

  // Nothing to filter: `update` only holds parameters that are trained.
  void update(Update& update, Tree& state) const override { optimizer_->update(update, state); }

  bool updates_params() const override { return optimizer_->updates_params(); }

  bool trains(const std::string& name) const override {
    return !frozen_(name) && optimizer_->trains(name);
  }

  std::optional<double> learning_rate(int64_t step) const override {
    return optimizer_->learning_rate(step);
  }

 private:
  std::shared_ptr<Optimizer> optimizer_;
  std::function<bool(const std::string&)> frozen_;
};

}  // namespace

std::shared_ptr<Optimizer> freeze(std::shared_ptr<Optimizer> optimizer,
                                  std::function<bool(const std::string&)> frozen) {
  return std::make_shared<Freeze>(std::move(optimizer), std::move(frozen));
}

}  // namespace redco
