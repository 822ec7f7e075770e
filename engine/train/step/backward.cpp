// Backward from a loss: how it begins, and in which order it runs.

#include "backward.h"

#include <redco/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <cstdint>
#include <limits>
#include <unordered_set>
#include <vector>

namespace redco::train {

namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;

// The sequence number of AccumulateGrad: ready nodes with this number run before all others.
constexpr uint64_t runs_first = std::numeric_limits<uint64_t>::max();

// The node of the only differentiable input; null if there are none or several.
Node* only_input(const Node& node) {
  Node* found = nullptr;
  for (const torch::autograd::Edge& edge : node.next_edges()) {
    if (!edge.is_valid()) continue;
    if (found) return nullptr;
    found = edge.function.get();
  }
  return found;
}

// The size of the only result of a node. All nodes that convert one tensor have one result.
c10::SymInt numel(const Node& node) {
  return c10::multiply_integers(node.input_metadata(0).shape_as_dim_vector());
}

// Whether the node computes, from a single parameter, a result with as many elements.
bool converts_parameter(const Node& node) {
  if (node.num_inputs() != 1) return false;
  for (Node* input = only_input(node); input && input->num_inputs() == 1;
       input = only_input(*input)) {
    if (numel(*input) != numel(node)) return false;
    if (dynamic_cast<AccumulateGrad*>(input)) return true;
  }
  return false;
}

}  // namespace

void check_loss(const at::Tensor& loss) {
  require(loss.defined(), "loss_fn returned no loss");
  require(loss.numel() == 1, "loss_fn returned a tensor of shape ", loss.sizes(),
          "; the loss must be one number: take its mean");
  require(loss.is_floating_point(), "loss_fn returned a loss of type ", loss.scalar_type(),
          "; it must be a floating-point number");
}

void check_has_graph(const at::Tensor& loss) {
  require(loss.requires_grad(),
          "loss_fn returned a loss that does not depend on any trained parameter: it must be "
          "computed from the params it is given, with gradients on");
}

at::Tensor for_sums(const at::Tensor& number) {
  at::Tensor value = number.detach();
  return at::isReducedFloatingType(value.scalar_type()) ? value.to(at::kFloat) : value;
}

FirstGradient::FirstGradient(const at::Tensor& factor, at::ScalarType dtype_of_loss) {
  constexpr double largest_power_of_half = 32768;
  gradient = (dtype_of_loss == at::kHalf ? factor.clamp_max(largest_power_of_half) : factor)
                 .to(dtype_of_loss);
  if (!at::isReducedFloatingType(dtype_of_loss)) return;
  at::Tensor missing = factor / gradient.to(factor.scalar_type());
  rest = at::where(gradient.eq(0), at::ones_like(missing), missing);
}

void change_missing_factor(const std::vector<at::Tensor>& gradients, const at::Tensor& from,
                           const at::Tensor& to) {
  if (!from.defined() && !to.defined()) return;
  at::Tensor divisor = to.defined() ? to : at::ones_like(from);
  if (from.defined()) divisor = divisor / from;
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> defined;
  for (const at::Tensor& gradient : gradients)
    if (gradient.defined()) defined.push_back(gradient);
  if (!defined.empty()) at::_foreach_div_(defined, divisor);
}

void run_conversions_early(const at::Tensor& loss) {
  std::vector<Node*> open;
  std::unordered_set<Node*> seen;
  auto meet = [&](Node* node) {
    if (node && seen.insert(node).second) open.push_back(node);
  };
  meet(loss.grad_fn().get());
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    if (converts_parameter(*node)) node->set_sequence_nr(runs_first);
    for (const torch::autograd::Edge& edge : node->next_edges()) meet(edge.function.get());
  }
}

}  // namespace redco::train
