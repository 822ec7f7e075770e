#include "backward_order.h"

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

// That of AccumulateGrad: ready nodes with it run before all others.
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

// A node with one result, as all have that convert one tensor.
c10::SymInt numel(const Node& node) {
  return c10::multiply_integers(node.input_metadata(0).shape_as_dim_vector());
}

// Whether the node makes from one parameter, and nothing else, as many elements.
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
