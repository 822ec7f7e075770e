// Cross-entropy of a linear layer, computed in blocks of rows.

#include "linear_cross_entropy.h"

#include "cross_entropy_kernel.h"

#include <redco/autocast.h>
#include <redco/detail/operator_interceptor.h>
#include <redco/detail/planned_device.h>
#include <redco/error.h>
#include <redco/nn.h>

#include <ATen/ATen.h>
#include <ATen/functorch/DynamicLayer.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <iterator>
#include <utility>

namespace redco::kernels {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Target make_target(const at::Tensor& labels, const Classes& classes, int64_t ignore_index,
                   double smoothing) {
  at::Tensor column = labels.reshape({-1, 1});
  at::Tensor ignored = column.eq(ignore_index);
  // Reading from a GPU would synchronise, so there the mask is always applied.
  bool some_ignored = !column.is_cpu() || ignored.any().item<bool>();
  if (some_ignored) column = column.masked_fill(ignored, 0);
  if (column.is_cpu() && column.numel() > 0) {
    auto [low, high] = column.aminmax();
    require(low.item<int64_t>() >= 0 && high.item<int64_t>() < classes.n_all,
            "linear_cross_entropy: labels must be in 0..", classes.n_all - 1, " or ignore_index (",
            ignore_index, "); there is a ",
            low.item<int64_t>() < 0 ? low.item<int64_t>() : high.item<int64_t>());
  }
  at::Tensor missing = ignored;
  bool is_part = classes.end - classes.begin < classes.n_all;
  if (is_part) {
    // A label that is no class at all does not count as missing, so it fails on all ranks.
    missing = column.lt(classes.begin).logical_and_(column.ge(0));
    missing.logical_or_(column.ge(classes.end).logical_and_(column.lt(classes.n_all)));
    column = (column - classes.begin).masked_fill_(missing, 0);
  }
  return {column, ignored, missing, some_ignored, is_part, smoothing, classes.n_all};
}

at::Tensor widened(const at::Tensor& logits) {
  return logits.element_size() < 4 ? logits.to(at::kFloat) : logits;
}

// The losses of all rows, [rows, 1].
at::Tensor losses_of(const at::Tensor& log_probs, const Target& target) {
  at::Tensor loss = log_probs.gather(1, target.labels).mul(target.smoothing - 1);
  if (target.some_missing) loss = loss.masked_fill(target.missing, 0);
  if (target.smoothing > 0)
    loss = loss - log_probs.sum(1, true).mul(target.smoothing / double(target.n_classes));
  if (target.some_ignored) loss = loss.masked_fill(target.ignored, 0);
  return loss;
}

// Subtracts the target from the probabilities, which gives the gradient of the logits.
void subtract_target_(at::Tensor& probs, const Target& target) {
  if (target.smoothing > 0) probs.sub_(target.smoothing / double(target.n_classes));
  at::Tensor on_label = at::full_like(target.labels, target.smoothing - 1, probs.options());
  if (target.some_missing) on_label.masked_fill_(target.missing, 0);
  probs.scatter_add_(1, target.labels, on_label);
  if (target.some_ignored) probs.masked_fill_(target.ignored, 0);
}

// The same with differentiable operators, for second-order gradients. `grad` is that of the sum, or
// of each row, [rows, 1].
variable_list differentiable_gradients(const at::Tensor& x, const at::Tensor& weight,
                                       const std::optional<at::Tensor>& bias, const Target& target,
                                       const at::Tensor& grad) {
  at::Tensor probs = widened(at::linear(x, weight, bias)).softmax(1);
  at::Tensor one_hot = at::zeros_like(probs, probs.options());
  subtract_target_(one_hot, target);
  if (target.some_ignored) probs = probs.masked_fill(target.ignored, 0);
  at::Tensor d_logits = ((probs + one_hot) * grad).to(x.scalar_type());
  return {d_logits.matmul(weight), d_logits.t().matmul(x), bias ? d_logits.sum(0) : at::Tensor()};
}

using Parts = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// The operator for tensors that are not sharded.
Parts whole(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
            const at::Tensor& labels, int64_t ignore_index, double label_smoothing, bool needs_x,
            bool needs_weight, bool needs_bias, bool keeps_rows,
            const std::optional<at::Tensor>& row_weights) {
  int64_t n_classes = weight.size(0);
  return linear_cross_entropy_part(x, weight, bias, labels, ignore_index, label_smoothing,
                                   {needs_x, needs_weight, needs_bias}, {keeps_rows, row_weights},
                                   {0, n_classes, n_classes, n_classes, x.size(0), {}});
}

TORCH_LIBRARY_FRAGMENT(redco, m) {
  m.def(
      "linear_cross_entropy(Tensor x, Tensor weight, Tensor? bias, Tensor labels, "
      "int ignore_index, float label_smoothing, bool needs_x, bool needs_weight, bool needs_bias, "
      "bool keeps_rows, Tensor? row_weights) -> (Tensor, Tensor, Tensor, Tensor)",
      torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &whole));
}

Parts call_operator(const at::Tensor& x, const at::Tensor& weight,
                    const std::optional<at::Tensor>& bias, const at::Tensor& labels,
                    int64_t ignore_index, double smoothing, Needed needed, const RowLosses& rows) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("redco::linear_cross_entropy", "")
                             .typed<decltype(whole)>();
  return op.call(x, weight, bias, labels, ignore_index, smoothing, needed.x, needed.weight,
                 needed.bias, rows.are_kept, rows.weights);
}

// The target of a process that has all classes.
Target whole_target(const at::Tensor& labels, const at::Tensor& weight, int64_t ignore_index,
                    double smoothing) {
  int64_t n_classes = weight.size(0);
  return make_target(labels, {0, n_classes, n_classes, n_classes, 0, {}}, ignore_index, smoothing);
}

class LinearCrossEntropy : public torch::autograd::Function<LinearCrossEntropy> {
 public:
  // x [rows, in]
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const at::Tensor& labels,
                            int64_t ignore_index, double smoothing) {
    auto [total, d_x, d_weight, d_bias] = call_operator(
        x, weight, bias, labels, ignore_index, smoothing,
        {x.requires_grad(), weight.requires_grad(), bias && bias->requires_grad()}, {false, {}});
    ctx->save_for_backward({x, weight, bias.value_or(at::Tensor()), labels});
    ctx->saved_data["d_x"] = d_x;
    ctx->saved_data["d_weight"] = d_weight;
    ctx->saved_data["d_bias"] = d_bias;
    ctx->saved_data["ignore_index"] = ignore_index;
    ctx->saved_data["smoothing"] = smoothing;
    return total;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &bias = saved[2];
    variable_list result(6);
    if (at::GradMode::is_enabled()) {
      const Target target = whole_target(saved[3], weight, ctx->saved_data["ignore_index"].toInt(),
                                         ctx->saved_data["smoothing"].toDouble());
      auto given = bias.defined() ? std::optional(bias) : std::nullopt;
      variable_list all = differentiable_gradients(x, weight, given, target, grads[0]);
      std::copy(all.begin(), all.end(), result.begin());
      return result;
    }
    // Scales the gradients in place if they are not needed again, because they are large.
    const bool is_last = !torch::autograd::get_current_graph_task_keep_graph();
    constexpr const char* names[] = {"d_x", "d_weight", "d_bias"};
    for (size_t i = 0; i < std::size(names); ++i) {
      at::Tensor made = ctx->saved_data[names[i]].toTensor();
      if (!made.defined()) continue;
      if (is_last) ctx->saved_data.erase(names[i]);
      at::Tensor scale = grads[0].to(made.scalar_type());
      at::Tensor scaled = is_last ? made.mul_(scale) : made.mul(scale);
      result[i] = scaled.to(saved[i].scalar_type());
    }
    return result;
  }
};

// The loss of each row. Its gradient is not known before backward, which computes the logits again,
// block by block.
class LinearCrossEntropies : public torch::autograd::Function<LinearCrossEntropies> {
 public:
  // x [rows, in]
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const at::Tensor& labels,
                            int64_t ignore_index) {
    ctx->save_for_backward({x, weight, bias.value_or(at::Tensor()), labels});
    ctx->saved_data["ignore_index"] = ignore_index;
    return std::get<0>(call_operator(x, weight, bias, labels, ignore_index, 0, {}, {true, {}}));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &labels = saved[3];
    const auto bias = saved[2].defined() ? std::optional(saved[2]) : std::nullopt;
    const int64_t ignore_index = ctx->saved_data["ignore_index"].toInt();
    variable_list result(5);
    if (at::GradMode::is_enabled()) {
      variable_list all = differentiable_gradients(
          x, weight, bias, whole_target(labels, weight, ignore_index, 0), grads[0].unsqueeze(1));
      std::copy(all.begin(), all.end(), result.begin());
      return result;
    }
    Needed needed{ctx->needs_input_grad(0), ctx->needs_input_grad(1),
                  bias && ctx->needs_input_grad(2)};
    auto [losses, d_x, d_weight, d_bias] =
        call_operator(x, weight, bias, labels, ignore_index, 0, needed, {true, grads[0]});
    if (needed.x) result[0] = d_x;
    if (needed.weight) result[1] = d_weight.to(weight.scalar_type());
    if (needed.bias) result[2] = d_bias.to(bias->scalar_type());
    return result;
  }
};

at::Tensor with_all_logits(const at::Tensor& x, const at::Tensor& weight,
                           const std::optional<at::Tensor>& bias, const at::Tensor& labels,
                           int64_t ignore_index, double smoothing, at::Reduction::Reduction over) {
  return at::cross_entropy_loss(widened(at::linear(x, weight, bias)), labels, {}, over,
                                ignore_index, smoothing);
}

// Classes without weight, added so that a row of logits fills whole units of 16 bytes: otherwise
// products on a GPU are several times as slow, as with GPT-2's 50257 classes.
class AddedClasses {
 public:
  explicit AddedClasses(const at::Tensor& weight) : n_(weight.size(0)) {
    const auto unit = int64_t(16 / weight.element_size());
    const c10::DeviceType device = device_type_of(weight);
    if (device != c10::kCPU && device != c10::kMeta) n_added_ = (n_ + unit - 1) / unit * unit - n_;
  }

  // `rows` [classes, ...] with rows of zeros for the added classes.
  at::Tensor below(const at::Tensor& rows) const {
    if (n_added_ == 0) return rows;
    std::vector<int64_t> pads(size_t(2 * rows.dim()));  // of the last dimension first
    pads.back() = n_added_;
    return at::constant_pad_nd(rows, pads);
  }

  // `matrix` [rows, classes] in a dtype, with columns of zeros for the added classes.
  at::Tensor beside(const at::Tensor& matrix, at::ScalarType dtype) const {
    if (n_added_ == 0) return matrix.to(dtype);
    at::Tensor all = at::empty({matrix.size(0), n_ + n_added_}, matrix.options().dtype(dtype));
    all.narrow(1, n_, n_added_).zero_();
    without(all, 1).copy_(matrix);
    return all;
  }

  at::Tensor without(const at::Tensor& all, int64_t dim) const {
    return n_added_ == 0 ? all : all.narrow(dim, 0, n_);
  }

 private:
  int64_t n_, n_added_ = 0;
};

// The results for a block of rows.
struct Block {
  at::Tensor losses;            // [rows, 1]; undefined if this rank has no classes
  at::Tensor d_logits, d_bias;  // undefined unless needed
};

Block block_by_operators(at::Tensor logits, const Target& target, const Classes& classes,
                         const AddedClasses& added, Needed needed, const at::Tensor& weights) {
  const at::ScalarType dtype = logits.scalar_type();
  at::Tensor log_probs = widened(added.without(logits, 1));
  logits.reset();
  log_probs = classes.over_all ? log_probs - classes.over_all(log_probs.logsumexp(1, true))
                               : log_probs.log_softmax(1);
  if (log_probs.size(1) == 0) return {};
  Block block{losses_of(log_probs, target), {}, {}};
  if (!needed.any()) return block;
  log_probs.exp_();
  subtract_target_(log_probs, target);
  if (weights.defined()) log_probs.mul_(weights);
  if (needed.bias) block.d_bias = log_probs.sum(0);
  block.d_logits = added.beside(log_probs, dtype);
  return block;
}

Block block_by_kernels(const at::Tensor& logits, const Target& target, const Classes& classes,
                       const AddedClasses& added, Needed needed, const at::Tensor& weights) {
  const int64_t n_classes = classes.end - classes.begin;
  RowSums sums = row_sums(logits, n_classes);
  if (classes.over_all) sums.normalizer = classes.over_all(sums.normalizer);
  Block block{losses_of_logits_(logits, n_classes, sums, target, needed.any()), {}, {}};
  if (!needed.any()) return block;
  if (weights.defined()) logits.mul_(weights);
  if (needed.bias) block.d_bias = added.without(logits, 1).sum({0}, false, at::kFloat);
  block.d_logits = logits;
  return block;
}

}  // namespace

int64_t rows_per_block(c10::DeviceType device, int64_t n_classes) {
  // On a CPU a block should still be in the cache for the next pass. On a GPU each block reads the
  // whole weight and its gradient again, so blocks are large: 2^27 logits are 512 MB in float32. A
  // power of two of rows fits the tiles of a product.
  const bool is_cpu = device == c10::kCPU;
  const int64_t elements = int64_t{1} << (is_cpu ? 21 : 27);
  const auto rows = uint64_t(elements / std::max<int64_t>(1, n_classes));
  // Enough rows for an efficient product: with 50,000 classes a step of GPT-2 on a CPU takes 8 %
  // less time than with the 41 rows that fit the cache.
  return int64_t(std::max<uint64_t>(128, is_cpu ? rows : std::bit_floor(rows)));
}

Parts linear_cross_entropy_part(const at::Tensor& x, const at::Tensor& weight,
                                const std::optional<at::Tensor>& bias, const at::Tensor& labels,
                                int64_t ignore_index, double label_smoothing, Needed needed,
                                const RowLosses& all_rows, const Classes& classes) {
  const int64_t n_rows = x.size(0);
  const Target target = make_target(labels, classes, ignore_index, label_smoothing);
  const int64_t n_classes = weight.size(0);
  const AddedClasses added(weight);
  const at::Tensor matrix = added.below(weight);
  const std::optional<at::Tensor> offset = bias ? std::optional(added.below(*bias)) : std::nullopt;
  at::Tensor d_x;
  if (needed.x) d_x = n_classes == 0 ? at::zeros_like(x) : at::empty_like(x);
  at::Tensor d_weight;
  const auto options = x.options().dtype(x.element_size() < 4 ? at::kFloat : x.scalar_type());
  at::Tensor total = all_rows.are_kept ? at::zeros({n_rows}, options) : at::zeros({}, options);
  at::Tensor d_bias;
  if (needed.bias) d_bias = at::zeros({n_classes}, total.options());
  const bool has_kernels = n_classes > 0 && has_cross_entropy_kernels(x);
  const int64_t n_block = rows_per_block(device_type_of(x), classes.n_most);
  for (int64_t first = 0; first < classes.n_most_rows; first += n_block) {
    const int64_t begin = std::min(first, n_rows), length = std::min(n_block, n_rows - begin);
    at::Tensor rows = x.narrow(0, begin, length);
    const Target here = target.rows(begin, length);
    at::Tensor weights;
    if (all_rows.weights) weights = all_rows.weights->narrow(0, begin, length).unsqueeze(1);
    at::Tensor logits = at::linear(rows, matrix, offset);
    auto [losses, d_logits, of_bias] =
        has_kernels ? block_by_kernels(logits, here, classes, added, needed, weights)
                    : block_by_operators(std::move(logits), here, classes, added, needed, weights);
    if (losses.defined() && all_rows.are_kept)
      total.narrow(0, begin, length).copy_(losses.squeeze(1));
    if (losses.defined() && !all_rows.are_kept) total += losses.sum();
    if (of_bias.defined()) d_bias += of_bias;
    if (!d_logits.defined()) continue;
    if (needed.x) {
      at::Tensor place = d_x.narrow(0, begin, length);
      at::mm_out(place, d_logits, matrix);
    }
    if (!needed.weight) continue;
    if (!d_weight.defined())
      d_weight = d_logits.t().mm(rows).to(total.scalar_type());
    else if (d_weight.scalar_type() == x.scalar_type())
      d_weight.addmm_(d_logits.t(), rows);
    else
      d_weight.add_(d_logits.t().mm(rows));  // 16-bit blocks accumulate in 32 bits
  }
  if (d_weight.defined())
    d_weight = added.without(d_weight, 0);
  else if (needed.weight)
    d_weight = at::zeros(weight.sizes(), weight.options().dtype(total.scalar_type()));
  return {total, d_x, d_weight, d_bias};
}

}  // namespace redco::kernels

namespace redco {

using namespace kernels;

namespace {

using Apply = at::Tensor(const at::Tensor& rows, const at::Tensor& weight,
                         const std::optional<at::Tensor>& bias, const at::Tensor& labels);

// Checks the arguments of the function `name`, and calls `apply` with x as [rows, in] and labels as
// [rows].
at::Tensor on_rows(const char* name, const at::Tensor& x, const at::Tensor& weight,
                   const at::Tensor& labels, const std::optional<at::Tensor>& bias,
                   const std::function<Apply>& apply) {
  const at::DeviceType device = x.device().type();
  if (auto dtype = autocast_dtype(device); dtype && x.scalar_type() != at::kDouble) {
    // Only the product runs in the lower dtype; the rest is in float32 anyway.
    auto given = bias ? std::optional(bias->to(*dtype)) : std::nullopt;
    at::Tensor rows = x.to(*dtype), classes = weight.to(*dtype);
    Autocast off(device, std::nullopt);
    return on_rows(name, rows, classes, labels, given, apply);
  }
  require(weight.dim() == 2 && x.dim() >= 1 && x.size(-1) == weight.size(1), name,
          ": expected x [..., in] and weight [classes, in], got x ", x.sizes(), " and weight ",
          weight.sizes());
  require(x.scalar_type() == weight.scalar_type() && x.is_floating_point(), name,
          ": x and weight must have one floating-point dtype, they have ", x.scalar_type(), " and ",
          weight.scalar_type());
  require(!bias || (bias->dim() == 1 && bias->size(0) == weight.size(0) &&
                    bias->scalar_type() == x.scalar_type()),
          name, ": expected bias [classes] of x's dtype, got ",
          bias ? bias->sizes() : at::IntArrayRef());
  require(labels.scalar_type() == at::kLong && labels.sizes() == x.sizes().slice(0, x.dim() - 1),
          name, ": expected Long labels of shape ", x.sizes().slice(0, x.dim() - 1), ", got ",
          labels.scalar_type(), " ", labels.sizes());
  const auto tensors = intercepted(
      {x.reshape({-1, x.size(-1)}), weight, labels.reshape({-1}), bias.value_or(at::Tensor())});
  return apply(tensors[0], tensors[1], bias ? std::optional(tensors[3]) : std::nullopt, tensors[2]);
}

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& labels, int64_t ignore_index,
                                double label_smoothing, const std::optional<at::Tensor>& bias) {
  require(label_smoothing >= 0 && label_smoothing <= 1,
          "linear_cross_entropy: label_smoothing must be in 0..1, it is ", label_smoothing);
  return on_rows(
      "linear_cross_entropy", x, weight, labels, bias,
      [&](const auto& rows, const auto& classes, const auto& offset, const auto& column) {
        return at::functorch::maybeCurrentDynamicLayer()
                   ? with_all_logits(rows, classes, offset, column, ignore_index, label_smoothing,
                                     at::Reduction::Sum)
                   : LinearCrossEntropy::apply(rows, classes, offset, column, ignore_index,
                                               label_smoothing);
      });
}

at::Tensor linear_logprobs(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& labels,
                           int64_t ignore_index, const std::optional<at::Tensor>& bias) {
  return on_rows(
             "linear_logprobs", x, weight, labels, bias,
             [&](const auto& rows, const auto& classes, const auto& offset, const auto& column) {
               return at::functorch::maybeCurrentDynamicLayer()
                          ? with_all_logits(rows, classes, offset, column, ignore_index, 0,
                                            at::Reduction::None)
                          : LinearCrossEntropies::apply(rows, classes, offset, column,
                                                        ignore_index);
             })
      .neg()
      .reshape(labels.sizes());
}

}  // namespace redco
