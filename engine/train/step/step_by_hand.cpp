// An optimizer's state and steps outside of a Trainer.

#include "../../optim/parameter_groups.h"

#include <redco/error.h>
#include <redco/optim.h>
#include <redco/sharding.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace redco {

namespace {

std::vector<NamedTensor> floating(const Tree& params) {
  std::vector<NamedTensor> result = train::floating_params(params);
  require(!result.empty(), "optimizer: there is no floating-point tensor in the params");
  std::map<const void*, const NamedTensor*> seen;
  for (const NamedTensor& param : result) {
    const NamedTensor*& first = seen[memory_key(param.second)];
    require(first == nullptr || !is_same_tensor(first->second, param.second), "optimizer: '",
            first ? first->first : "", "' and '", param.first,
            "' of the params are one tensor: keep it at one place of the tree, or use a Trainer, "
            "which handles tied weights");
    first = &param;
  }
  return result;
}

std::string kind_of(const Tree& tree) {
  if (tree.is_tensor()) {
    std::string text = "a tensor of shape [";
    for (int64_t size : tree.tensor().sizes())
      text += (text.back() == '[' ? "" : ", ") + std::to_string(size);
    return text + "]";
  }
  return std::string("a ") + tree.kind();
}

bool is_empty(const Tree& tree) {
  return (tree.is<Tree::Dict>() && tree.as<Tree::Dict>().empty()) ||
         (tree.is<Tree::List>() && tree.as<Tree::List>().empty());
}

[[noreturn]] void fail_at(const std::string& path, const std::string& what) {
  fail("optimizer state: ", path.empty() ? "" : "'" + path + "': ", what,
       "; is it the state of this optimizer and for these parameters?");
}

void compare(const Tree& found, const Tree& expected, const std::string& path) {
  auto below = [&](const std::string& key) { return path.empty() ? key : path + "." + key; };
  auto is_number = [](const Tree& tree) { return tree.is<int64_t>() || tree.is<double>(); };
  if (is_empty(found) && is_empty(expected)) return;
  bool is_alike = expected.is<Tree::Dict>()   ? found.is<Tree::Dict>() || is_empty(found)
                  : expected.is<Tree::List>() ? found.is<Tree::List>()
                  : expected.is_tensor()      ? found.is_tensor()
                                              : is_number(found);
  if (!is_alike || (expected.is_tensor() && found.tensor().sizes() != expected.tensor().sizes()))
    fail_at(path, "it is " + kind_of(found) + ", expected " + kind_of(expected));
  if (expected.is<Tree::List>()) {
    const auto &have = found.as<Tree::List>(), &want = expected.as<Tree::List>();
    if (have.size() != want.size())
      fail_at(path, "it has " + std::to_string(have.size()) + " entries, expected " +
                        std::to_string(want.size()));
    for (size_t i = 0; i < want.size(); ++i)
      compare(have[i], want[i], below(std::to_string(i + 1)));
  } else if (expected.is<Tree::Dict>()) {
    const Tree::Dict none;
    const auto& have = found.is<Tree::Dict>() ? found.as<Tree::Dict>() : none;
    const auto& want = expected.as<Tree::Dict>();
    for (const auto& [key, value] : want) {
      auto entry = have.find(key);
      if (entry == have.end()) fail_at(below(key), "it is missing");
      compare(entry->second, value, below(key));
    }
    for (const auto& [key, value] : have)
      if (!want.contains(key)) fail_at(below(key), "the optimizer has no such entry");
  }
}

// The gradients of the parameters that have one, in the parameters' layout.
void add_gradients(const Tree& grads, const Tree& tree, const std::vector<NamedTensor>& params,
                   Update& update) {
  std::map<std::string, at::Tensor> by_name;
  for (auto& [name, grad] : named_tensors(grads)) by_name[name] = grad;
  for (const auto& [name, param] : params) {
    auto found = by_name.find(name);
    if (found == by_name.end() || !found->second.defined()) continue;
    at::Tensor grad = found->second.detach();
    by_name.erase(found);
    require(grad.sizes() == param.sizes(), "optimizer: the gradient of '", name, "' has shape ",
            grad.sizes(), ", the parameter ", param.sizes());
    if (grad.strides() != param.strides() || grad.scalar_type() != param.scalar_type() ||
        grad.device() != param.device() || placements_of(grad) != placements_of(param) ||
        is_sharded(grad) != is_sharded(param))
      grad = at::empty_like(param.detach()).copy_(grad);
    update.names.push_back(name);
    update.params.push_back(param);
    update.grads.push_back(grad);
  }
  for (const auto& [name, param] : named_tensors(tree)) by_name.erase(name);  // not trained
  for (const auto& [name, grad] : by_name)
    require(!grad.defined(), "optimizer: there is no parameter '", name,
            "', but a gradient of that name");
  require(!update.grads.empty(), "optimizer: no parameter has a gradient");
}

int64_t step_of(const Tree& state) {
  const Tree& step = state.at("step");
  require(step.is<int64_t>() && step.as<int64_t>() >= 0, "optimizer state: step is ", kind_of(step),
          ", expected a whole number of at least 0");
  return step.as<int64_t>();
}

}  // namespace

void check_state(const Optimizer& optimizer, const Tree& opt_state,
                 const std::vector<NamedTensor>& params) {
  std::vector<NamedTensor> shapes;
  for (const auto& [name, param] : params)
    shapes.emplace_back(name, at::empty(param.sizes(), param.options().device(at::kMeta)));
  compare(opt_state, optimizer.init(shapes), "");
}

Tree init_state(const Optimizer& optimizer, const Tree& params) {
  at::NoGradGuard no_grad;
  std::vector<NamedTensor> all = floating(params);
  optimizer.check(all);
  return Tree::Dict{{"step", 0},
                    {"opt_state", optimizer.init(train::trained_by(optimizer, std::move(all)))}};
}

void take_step(const Optimizer& optimizer, const Tree& grads, Tree& state, const Tree& params) {
  at::NoGradGuard no_grad;
  require(
      optimizer.stage() == Stage::params,
      "optimizer: it does not update parameters: chain it with one that does (adamw, sgd, ...)");
  require(state.is<Tree::Dict>() && state.as<Tree::Dict>().contains("opt_state") &&
              state.as<Tree::Dict>().contains("step"),
          "optimizer state: expected what `init` returned, {step, opt_state}; for a Trainer's use "
          "{step = trainer.step, opt_state = trainer.state.opt_state}");
  std::vector<NamedTensor> all = floating(params);
  optimizer.check(all);
  std::vector<NamedTensor> own = train::trained_by(optimizer, std::move(all));
  check_state(optimizer, state.at("opt_state"), own);
  Update update;
  update.step = step_of(state);
  update.borrows_grads = true;
  add_gradients(grads, params, own, update);
  for (size_t i = 0; i < update.params.size(); ++i)
    require(update.params[i].is_non_overlapping_and_dense(), "optimizer: parameter '",
            update.names[i], "' of shape ", update.params[i].sizes(), " and strides ",
            update.params[i].strides(), " is not dense: pass a contiguous copy");
  optimizer.update(update, state.at("opt_state"));
  state["step"] = update.step + 1;
}

Tree averages_of(const Optimizer& optimizer, const Tree& opt_state, const Tree& params) {
  Tree::Dict averages;
  optimizer.collect_averages(opt_state, averages);
  require(!averages.empty(),
          "optimizer: it keeps no averages of the parameters: add `ema` to its chain");
  at::NoGradGuard no_grad;
  return map_tensors(params, [&](const std::string& name, const at::Tensor& param) {
    auto found = averages.find(name);
    if (found == averages.end()) return param;
    const at::Tensor& average = found->second.tensor();
    require(average.sizes() == param.sizes(), "optimizer: the average of '", name, "' has shape ",
            average.sizes(), ", the parameter ", param.sizes());
    return is_sharded(param) ? shard(average, mesh_of(param), placements_of(param))
                             : average.clone();
  });
}

}  // namespace redco
