#pragma once

#include <redco/export.h>
#include <redco/schedule.h>
#include <redco/tree.h>

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace redco {

class Optimizer;

/// Selects the parameters to which weight decay applies; empty selects all. It must depend only on
/// its arguments: a Trainer calls it once per parameter, not once per step.
using DecayMask = std::function<bool(const std::string& name, const at::Tensor& param)>;

/// Parameters that one call of a fused or foreach operator can process together.
struct ParameterGroup {
  std::vector<size_t> members;  ///< positions in the Update's lists
  double weight_decay;          ///< 0 for parameters that the mask excludes
};

/// The data of one optimizer step. The lists are parallel. Parameters are changed in place;
/// gradients may be changed in place or replaced, after which `grads_changed` must be called.
class REDCO_API Update {
 public:
  std::vector<std::string> names;  ///< dotted paths in the params tree
  std::vector<at::Tensor> params;  ///< dense floating-point tensors
  std::vector<at::Tensor> grads;   ///< same shapes, strides and dtypes as `params`
  int64_t step = 0;  ///< optimizer steps completed before this one; the argument of schedules

  /// The 2-norm over all gradients: 0-dim, float32, on their device. Computed on first use and
  /// cached; it does not synchronise with the device.
  const at::Tensor& global_norm();
  /// Must be called after gradients were changed, with their new norm if it is known.
  void grads_changed(at::Tensor global_norm = {}) { global_norm_ = std::move(global_norm); }

  /// The parameters, grouped by device, dtype and weight decay. Computed once for each optimizer.
  const std::vector<ParameterGroup>& groups(const Optimizer& optimizer, double weight_decay,
                                            const DecayMask& mask);

 private:
  at::Tensor global_norm_;
  std::map<const Optimizer*, std::vector<ParameterGroup>> groups_;
};

/// A transformation of gradients, or of parameters by their gradients, as in optax. It is
/// stateless: its state is a Tree that the caller keeps and can save.
class REDCO_API Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// The state before the first step: dictionaries such as {"exp_avg": {name: tensor}}, keyed by
  /// the dotted names of the parameters. An empty dictionary if there is no state: Lua lists cannot
  /// have holes.
  virtual Tree init(const std::vector<NamedTensor>& params) const = 0;

  /// Performs one step. `update` holds only the parameters for which `trains` is true. Does not
  /// synchronise with the device.
  virtual void update(Update& update, Tree& state) const = 0;

  /// False if it only changes gradients.
  virtual bool updates_params() const = 0;

  /// Whether this parameter is trained. Others need no gradient.
  virtual bool trains(const std::string& name) const { return true; }

  /// The learning rate at `step`; none if it has none.
  virtual std::optional<double> learning_rate(int64_t step) const { return std::nullopt; }
};

// The options of the optimizers. `visit(self, visit)` calls visit(name, member) for each option
// that not all of them have: records of a run, Lua's arguments and the help texts are made from
// these.

struct AdamOptions {
  Schedule learning_rate = {};  ///< required
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  DecayMask mask = {};

  template <class Self, class Visit>
  static void visit(Self& self, Visit&& visit) {
    visit("betas", self.betas);
    visit("eps", self.eps);
  }
};

struct AdamWOptions {
  Schedule learning_rate = {};  ///< required
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0.01;
  DecayMask mask = {};

  template <class Self, class Visit>
  static void visit(Self& self, Visit&& visit) {
    visit("betas", self.betas);
    visit("eps", self.eps);
  }
};

struct SGDOptions {
  Schedule learning_rate = {};  ///< required
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
  double weight_decay = 0;
  DecayMask mask = {};

  template <class Self, class Visit>
  static void visit(Self& self, Visit&& visit) {
    visit("momentum", self.momentum);
    visit("dampening", self.dampening);
    visit("nesterov", self.nesterov);
  }
};

struct LionOptions {
  Schedule learning_rate = {};  ///< required
  std::array<double, 2> betas = {0.9, 0.99};
  double weight_decay = 0;
  DecayMask mask = {};

  template <class Self, class Visit>
  static void visit(Self& self, Visit&& visit) {
    visit("betas", self.betas);
  }
};

struct AdafactorOptions {
  Schedule learning_rate = {};  ///< required; an upper bound of the relative step size
  double beta2_decay = -0.8;
  std::optional<double> eps1 = {};  ///< none: the epsilon of the dtype
  double eps2 = 1e-3;
  double d = 1.0;
  double weight_decay = 0;
  DecayMask mask = {};

  template <class Self, class Visit>
  static void visit(Self& self, Visit&& visit) {
    visit("beta2_decay", self.beta2_decay);
    visit("eps1", self.eps1);
    visit("eps2", self.eps2);
    visit("d", self.d);
  }
};

// All of these throw Error if an option is missing or out of range.

/// Adam (arXiv 1412.6980); weight decay is added to the gradient (L2), as in torch.optim.Adam.
/// State: exp_avg, exp_avg_sq, and one `step` (0-dim float32) for all parameters.
REDCO_API std::shared_ptr<Optimizer> adam(AdamOptions options);

/// Adam with decoupled weight decay (arXiv 1711.05101), as torch.optim.AdamW. The state is that of
/// adam.
REDCO_API std::shared_ptr<Optimizer> adamw(AdamWOptions options);

/// As torch.optim.SGD. State, with momentum only: momentum_buffer. At step 0 the buffer becomes the
/// first gradient; a run that resumes at a later step without its state starts from zeros.
REDCO_API std::shared_ptr<Optimizer> sgd(SGDOptions options);

/// Lion (arXiv 2302.06675, algorithm 2). State: exp_avg.
REDCO_API std::shared_ptr<Optimizer> lion(LionOptions options);

/// Adafactor (arXiv 1804.04235), with the arguments and arithmetic of torch.optim.Adafactor:
/// relative step size, factored second moments for two or more dimensions, no first moment. State:
/// row_var and col_var, or variance; and `step`.
REDCO_API std::shared_ptr<Optimizer> adafactor(AdafactorOptions options);

/// Scales all gradients by `max_norm / global_norm` if the norm is larger. Updates no parameters.
REDCO_API std::shared_ptr<Optimizer> clip_by_global_norm(double max_norm);

/// Applies optimizers in sequence. Throws Error unless the last one, and no other, updates
/// parameters. State: the list of their states.
REDCO_API std::shared_ptr<Optimizer> chain(std::vector<std::shared_ptr<Optimizer>> optimizers);

/// Wraps `optimizer` without the parameters for which `frozen(name)` is true: they get no gradient,
/// no state and no update.
REDCO_API std::shared_ptr<Optimizer> freeze(std::shared_ptr<Optimizer> optimizer,
                                            std::function<bool(const std::string& name)> frozen);

}  // namespace redco
