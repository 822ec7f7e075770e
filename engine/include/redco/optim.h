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

/// Selects parameters; empty selects all. It must depend only on its arguments: a Trainer calls it
/// once per parameter, not once per step.
using ParamFilter = std::function<bool(const std::string& name, const at::Tensor& param)>;
/// The parameters to which weight decay applies.
using DecayMask = ParamFilter;

/// A ParamFilter by name: selects a parameter if one of the patterns matches (ShardingRule says
/// how).
struct REDCO_API NamePatterns {
  std::vector<std::string> patterns;

  bool operator()(const std::string& name, const at::Tensor&) const;
};

/// Parameters that one call of a fused or foreach operator can process together.
struct ParameterGroup {
  std::vector<size_t> members;  ///< positions in the Update's lists
  double weight_decay;          ///< 0 for parameters that the mask excludes
};

/// The data of one optimizer step. The lists are parallel. Parameters are changed in place;
/// gradients may be replaced, or changed in place through `own_grads`, after which `grads_changed`
/// must be called.
class REDCO_API Update {
 public:
  std::vector<std::string> names;  ///< dotted paths in the params tree
  std::vector<at::Tensor> params;  ///< dense floating-point tensors
  std::vector<at::Tensor> grads;   ///< same shapes, strides and dtypes as `params`
  int64_t step = 0;  ///< optimizer steps completed before this one; the argument of schedules
  bool borrows_grads = false;  ///< whether the values of `grads` are not to be changed in place

  /// The gradients, copied first if they are borrowed.
  std::vector<at::Tensor>& own_grads();

  /// The 2-norm over all gradients: 0-dim, float32, on their device. Computed on first use and
  /// cached; it does not synchronise with the device.
  const at::Tensor& global_norm();
  /// Must be called after gradients were changed, with their new norm if it is known.
  void grads_changed(at::Tensor global_norm = {}) { global_norm_ = std::move(global_norm); }

  /// The parameters, grouped by device, dtype and weight decay. Computed once for each optimizer.
  const std::vector<ParameterGroup>& groups(const Optimizer& optimizer, double weight_decay,
                                            const DecayMask& mask);

  /// This step of the parameters at `members` alone. `members` is called once for each `key`.
  Update& part(const void* key, const std::function<std::vector<size_t>()>& members);

 private:
  struct Part;

  at::Tensor global_norm_;
  std::map<const Optimizer*, std::vector<ParameterGroup>> groups_;
  std::map<const void*, std::shared_ptr<Part>> parts_;
};

/// The place of an Optimizer in a `chain`.
enum class Stage : uint8_t {
  gradients,  ///< changes gradients only
  params,     ///< updates the parameters by their gradients
  updated,    ///< works on the updated parameters
};

using Metrics = std::map<std::string, double>;

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

  virtual Stage stage() const = 0;

  /// Throws Error if the optimizer does not suit the floating-point parameters of a tree. To be
  /// called before `init`.
  virtual void check(const std::vector<NamedTensor>& params) const {}

  /// Whether this parameter is trained. Others need no gradient.
  virtual bool trains(const std::string& name, const at::Tensor& param) const { return true; }

  /// The learning rates at `step`: one, or none, or with `multi` those of its entries.
  virtual std::vector<double> learning_rates(int64_t step, const Tree& state) const { return {}; }

  /// Passes on the metrics of an evaluation to learning rates that depend on them (`Plateau`).
  virtual void observe(const Metrics& metrics, Tree& state) const {}
  /// Whether `observe` does anything.
  virtual bool needs_metrics() const { return false; }

  /// Adds the averages of parameters in `state` (see `ema`) to `averages`, by name.
  virtual void collect_averages(const Tree& state, Tree::Dict& averages) const {}
};

// The options of the optimizers. `visit(self, visit)` calls visit(name, member) for each option
// that some optimizers lack. Records of a run, Lua's arguments and the help texts are made from
// these calls.

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

struct AdamW8bitOptions {
  Schedule learning_rate = {};  ///< required
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  int64_t min_8bit_size = 4096;  ///< moments of smaller parameters are floats; at least 256
  double weight_decay = 0.01;
  DecayMask mask = {};

  template <class Self, class Visit>
  static void visit(Self& self, Visit&& visit) {
    visit("betas", self.betas);
    visit("eps", self.eps);
    visit("min_8bit_size", self.min_8bit_size);
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

struct RMSpropOptions {
  Schedule learning_rate = {};  ///< required
  double alpha = 0.99;
  double eps = 1e-8;
  double momentum = 0;
  bool centered = false;
  double weight_decay = 0;
  DecayMask mask = {};

  template <class Self, class Visit>
  static void visit(Self& self, Visit&& visit) {
    visit("alpha", self.alpha);
    visit("eps", self.eps);
    visit("momentum", self.momentum);
    visit("centered", self.centered);
  }
};

struct AdagradOptions {
  Schedule learning_rate = {};  ///< required
  double lr_decay = 0;
  double initial_accumulator_value = 0;
  double eps = 1e-10;
  double weight_decay = 0;
  DecayMask mask = {};

  template <class Self, class Visit>
  static void visit(Self& self, Visit&& visit) {
    visit("lr_decay", self.lr_decay);
    visit("initial_accumulator_value", self.initial_accumulator_value);
    visit("eps", self.eps);
  }
};

struct LambOptions {
  Schedule learning_rate = {};  ///< required
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-6;
  double weight_decay = 0;
  DecayMask mask = {};

  template <class Self, class Visit>
  static void visit(Self& self, Visit&& visit) {
    visit("betas", self.betas);
    visit("eps", self.eps);
  }
};

struct MuonOptions {
  Schedule learning_rate = {};  ///< required
  double momentum = 0.95;
  bool nesterov = true;
  std::array<double, 3> ns_coefficients = {3.4445, -4.7750, 2.0315};
  double eps = 1e-7;
  int64_t ns_steps = 5;
  /// "original": the learning rate times sqrt(max(1, rows / columns)); "match_rms_adamw": times
  /// 0.2 sqrt(max(rows, columns)), so that a learning rate of adamw suits.
  std::string adjust_lr_fn = "original";
  double weight_decay = 0.1;
  DecayMask mask = {};

  template <class Self, class Visit>
  static void visit(Self& self, Visit&& visit) {
    visit("momentum", self.momentum);
    visit("nesterov", self.nesterov);
    visit("ns_coefficients", self.ns_coefficients);
    visit("eps", self.eps);
    visit("ns_steps", self.ns_steps);
    visit("adjust_lr_fn", self.adjust_lr_fn);
  }
};

// All of these throw Error if an option is missing or out of range.

/// Adam (arXiv 1412.6980); weight decay is added to the gradient (L2), as in torch.optim.Adam.
/// State: exp_avg, exp_avg_sq, and one `step` (0-dim float32) for all parameters.
REDCO_API std::shared_ptr<Optimizer> adam(AdamOptions options);

/// Adam with decoupled weight decay (arXiv 1711.05101), as torch.optim.AdamW. The state is that of
/// adam.
REDCO_API std::shared_ptr<Optimizer> adamw(AdamWOptions options);

/// AdamW with moments of 8 bits, as bitsandbytes.optim.AdamW8bit: blocks of 256 neighbours of the
/// row-major parameter share a scale, on every layout. State: exp_avg and exp_avg_sq, uint8 like
/// the parameter; absmax, float32 [2, blocks]; and `step`. The moments of parameters with fewer
/// than min_8bit_size elements are float32, or float64 like the parameter.
REDCO_API std::shared_ptr<Optimizer> adamw8bit(AdamW8bitOptions options);

/// As torch.optim.SGD. State, with momentum only: momentum_buffer. At step 0 the buffer becomes the
/// first gradient; a run that resumes at a later step without its state starts from zeros.
REDCO_API std::shared_ptr<Optimizer> sgd(SGDOptions options);

/// Lion (arXiv 2302.06675, algorithm 2). State: exp_avg.
REDCO_API std::shared_ptr<Optimizer> lion(LionOptions options);

/// Adafactor (arXiv 1804.04235), with the arguments and arithmetic of torch.optim.Adafactor:
/// relative step size, factored second moments for two or more dimensions, no first moment. State:
/// row_var and col_var, or variance; and `step`.
REDCO_API std::shared_ptr<Optimizer> adafactor(AdafactorOptions options);

/// As torch.optim.RMSprop. State: square_avg; with momentum momentum_buffer, centered grad_avg.
REDCO_API std::shared_ptr<Optimizer> rmsprop(RMSpropOptions options);

/// As torch.optim.Adagrad. State: sum.
REDCO_API std::shared_ptr<Optimizer> adagrad(AdagradOptions options);

/// LAMB (arXiv 1904.00962), as optax.lamb: Adam with decoupled weight decay, each parameter's
/// update scaled to the norm of the parameter. State: exp_avg, exp_avg_sq and `step`.
REDCO_API std::shared_ptr<Optimizer> lamb(LambOptions options);

/// Muon, as torch.optim.Muon: momentum whose matrix is made orthogonal by Newton-Schulz iterations
/// in bfloat16. Every process works on the whole matrix. It updates matrices only. State:
/// momentum_buffer.
REDCO_API std::shared_ptr<Optimizer> muon(MuonOptions options);

/// Scales all gradients by `max_norm / global_norm` if the norm is larger. Updates no parameters.
REDCO_API std::shared_ptr<Optimizer> clip_by_global_norm(double max_norm);

/// Limits each value of the gradients to [-max_value, max_value].
REDCO_API std::shared_ptr<Optimizer> clip_by_value(double max_value);

/// Adds `weight_decay` times the parameter to each gradient that `mask` selects.
REDCO_API std::shared_ptr<Optimizer> add_decayed_weights(double weight_decay, DecayMask mask = {});

/// Keeps an exponential moving average of the parameters in at least float32: starts with the
/// initial ones, and at every `every`-th step takes `decay` of itself and 1 - decay of the updated
/// parameters. `decay` may depend on the step. State: ema. See `averages_of`.
REDCO_API std::shared_ptr<Optimizer> ema(Schedule decay, int64_t every = 1);

/// Lookahead (arXiv 1907.08610): every `every` steps the slow parameters move by `alpha` towards
/// the parameters, which continue from there. State: slow.
REDCO_API std::shared_ptr<Optimizer> lookahead(int64_t every, double alpha);

/// Applies optimizers in sequence: some that change gradients, one that updates the parameters,
/// some that work on the updated parameters. Throws Error for another order. State: the list of
/// their states.
REDCO_API std::shared_ptr<Optimizer> chain(std::vector<std::shared_ptr<Optimizer>> optimizers);

/// Wraps `optimizer` without the parameters for which `frozen` is true: they get no gradient, no
/// state and no update.
REDCO_API std::shared_ptr<Optimizer> freeze(std::shared_ptr<Optimizer> optimizer,
                                            ParamFilter frozen);

/// The parameters that a filter selects, and their optimizer; null leaves them untrained.
struct OptimizerOf {
  std::string label;  ///< of the filter, in messages
  ParamFilter selects;
  std::shared_ptr<Optimizer> optimizer;
};

/// Several optimizers on one tree: each parameter has that of the first entry that selects it.
/// `check` throws Error for a parameter that no entry selects, and for an entry that gets none.
/// State: the list of their states. An entry without gradients in a step stays as it is.
REDCO_API std::shared_ptr<Optimizer> multi(std::vector<OptimizerOf> optimizers);

// --- Steps outside of a Trainer
// -------------------------------------------------------------------

/// The state of an optimizer for a tree of parameters: {"step": 0, "opt_state": ...}.
REDCO_API Tree init_state(const Optimizer& optimizer, const Tree& params);

/// Performs one step in place: changes the tensors of `params` and `state`, and counts the step.
/// Gradients are found by their dotted paths and keep their values; parameters without a gradient,
/// or with an undefined one, stay as they are. Throws Error, and changes nothing, for gradients or
/// a state that do not fit.
REDCO_API void take_step(const Optimizer& optimizer, const Tree& grads, Tree& state,
                         const Tree& params);

/// Copies of the averages that an `ema` in the optimizer keeps, as a tree like `params` and in its
/// placements; other tensors are those of `params`. `opt_state` is that of a TrainState. Throws
/// Error if there are none.
REDCO_API Tree averages_of(const Optimizer& optimizer, const Tree& opt_state, const Tree& params);

/// Throws Error, which names the first difference, unless `opt_state` has the names and shapes of
/// the optimizer's state for these parameters.
REDCO_API void check_state(const Optimizer& optimizer, const Tree& opt_state,
                           const std::vector<NamedTensor>& params);

}  // namespace redco
