#include "parameter_groups.h"

#include "../core/host_memory.h"
#include "log_actions.h"

#include <redco/detail/name_pattern.h>
#include <redco/error.h>
#include <redco/sharding.h>

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace redco {

const std::vector<ParameterGroup>& Update::groups(const Optimizer& optimizer, double weight_decay,
                                                  const DecayMask& mask) {
  auto [entry, is_new] = groups_.try_emplace(&optimizer);
  if (!is_new) return entry->second;
  using Key = std::tuple<std::string, at::ScalarType, bool>;
  std::map<Key, size_t> places;
  std::vector<std::string> decaying;
  for (size_t i = 0; i < params.size(); ++i) {
    bool decays = weight_decay != 0 && (!mask || mask(names[i], params[i]));
    if (decays) decaying.push_back(names[i]);
    Key key(params[i].device().str(), params[i].scalar_type(), decays);
    auto [place, added] = places.try_emplace(std::move(key), entry->second.size());
    if (added) entry->second.push_back({{}, decays ? weight_decay : 0});
    entry->second[place->second].members.push_back(i);
  }
  if (mask) train::log_names("decays the weights of", decaying);
  return entry->second;
}

bool NamePatterns::operator()(const std::string& name, const at::Tensor&) const {
  return std::ranges::any_of(
      patterns, [&](const std::string& pattern) { return matches_name(pattern, name); });
}

struct Update::Part {
  Update update;
  std::vector<size_t> members;
};

Update& Update::part(const void* key, const std::function<std::vector<size_t>()>& members) {
  std::shared_ptr<Part>& part = parts_[key];
  if (!part) {
    part = std::make_shared<Part>();
    part->members = members();
    for (size_t i : part->members) {
      part->update.names.push_back(names[i]);
      part->update.params.push_back(params[i]);
    }
    train::log_names("has an optimizer for", part->update.names);
  }
  Update& update = part->update;
  update.grads.clear();
  for (size_t i : part->members) update.grads.push_back(grads[i]);
  update.grads_changed();
  update.borrows_grads = borrows_grads;
  update.step = step;
  return update;
}

std::vector<at::Tensor>& Update::own_grads() {
  if (std::exchange(borrows_grads, false))
    for (at::Tensor& grad : grads) grad = grad.clone();
  return grads;
}

namespace train {

namespace {

thread_local bool moves_states = false;

}  // namespace

std::vector<NamedTensor> floating_params(const Tree& params) {
  std::vector<NamedTensor> found = named_tensors(params);
  std::erase_if(found, [](const NamedTensor& param) {
    return !param.second.defined() || !param.second.is_floating_point();
  });
  return found;
}

std::vector<NamedTensor> trained_by(const Optimizer& optimizer, std::vector<NamedTensor> params) {
  std::erase_if(params, [&](const NamedTensor& param) {
    return !optimizer.trains(param.first, param.second);
  });
  return params;
}

std::vector<at::Tensor> select(const std::vector<at::Tensor>& tensors,
                               const ParameterGroup& group) {
  std::vector<at::Tensor> selected;
  selected.reserve(group.members.size());
  for (size_t i : group.members) selected.push_back(tensors[i]);
  return selected;
}

std::vector<at::Tensor> select(const Tree& state, const char* slot, const Update& update,
                               const ParameterGroup& group) {
  std::vector<at::Tensor> selected;
  selected.reserve(group.members.size());
  const auto& tensors = state.at(slot).as<Tree::Dict>();
  for (size_t i : group.members) {
    auto found = tensors.find(update.names[i]);
    require(found != tensors.end(), "optimizer state: no '", slot, "' for parameter '",
            update.names[i], "'; was the state made for other parameters?");
    const at::Tensor& tensor = found->second.tensor();
    const at::Tensor& param = update.params[i];
    require(tensor.sizes() == param.sizes() && tensor.strides() == param.strides(),
            "optimizer state: '", slot, "' of parameter '", update.names[i], "' has shape ",
            tensor.sizes(), " and strides ", tensor.strides(), ", the parameter ", param.sizes(),
            " and ", param.strides());
    selected.push_back(tensor);
  }
  return selected;
}

StatesOnHost::StatesOnHost(bool is_on) : outer_(std::exchange(moves_states, is_on)) {}
StatesOnHost::~StatesOnHost() { moves_states = outer_; }

at::Tensor as_state(at::Tensor tensor) {
  if (moves_states) move_to_host(memory_of(tensor));
  return tensor;
}

Tree zeros_like(const std::vector<NamedTensor>& params) {
  Tree::Dict zeros;
  for (const auto& [name, param] : params) zeros[name] = as_state(at::zeros_like(param.detach()));
  return zeros;
}

Tree zero_step(const std::vector<NamedTensor>& params) {
  at::TensorOptions options = at::kFloat;
  return at::zeros({}, params.empty() ? options : options.device(params.front().second.device()));
}

void check_layout(const Update& update, const ParameterGroup& group) {
  for (size_t i : group.members) {
    const at::Tensor& param = update.params[i];
    const at::Tensor& grad = update.grads[i];
    require(param.is_non_overlapping_and_dense(), "optimizer: parameter '", update.names[i],
            "' of shape ", param.sizes(), " and strides ", param.strides(),
            " is not dense: pass a contiguous copy");
    require(grad.sizes() == param.sizes() && grad.strides() == param.strides() &&
                grad.scalar_type() == param.scalar_type(),
            "optimizer: the gradient of '", update.names[i], "' has shape ", grad.sizes(),
            ", strides ", grad.strides(), " and type ", grad.scalar_type(), "; the parameter has ",
            param.sizes(), ", ", param.strides(), " and ", param.scalar_type());
  }
}

void check_patterns(const char* what, const ParamFilter& filter,
                    const std::vector<NamedTensor>& params) {
  const auto* names = filter.target<NamePatterns>();
  if (names == nullptr) return;
  for (const std::string& pattern : names->patterns)
    require(
        std::ranges::any_of(
            params, [&](const NamedTensor& param) { return matches_name(pattern, param.first); }),
        what, ": the pattern \"", pattern, "\" matches no parameter; the first is '",
        params.empty() ? "" : params.front().first,
        "'. A pattern must match a whole dotted name or its last parts, with * for any text");
}

Schedule checked_learning_rate(const char* optimizer, Schedule learning_rate) {
  require(bool(learning_rate), optimizer,
          ": learning_rate is missing: give a number or a schedule");
  if (learning_rate.plateau()) return learning_rate;  // its values are checked already
  return [optimizer, learning_rate = std::move(learning_rate)](int64_t step) {
    double value = learning_rate(step);
    require(value >= 0 && std::isfinite(value), optimizer, ": learning_rate is ", value,
            " at step ", step, "; it must be finite and not below 0");
    return value;
  };
}

void check_betas(const char* optimizer, const std::array<double, 2>& betas) {
  for (double beta : betas)
    require(beta >= 0 && beta < 1, optimizer, ": betas = {", betas[0], ", ", betas[1],
            "} must each be at least 0 and less than 1");
}

void check_fraction(const char* optimizer, const char* option, double value) {
  require(value >= 0 && value < 1, optimizer, ": ", option, " = ", value,
          " must be at least 0 and less than 1");
}

void check_at_least(const char* optimizer, const char* option, double value, double least) {
  require(value >= least && std::isfinite(value), optimizer, ": ", option, " = ", value,
          " must be at least ", least, std::isfinite(value) ? "" : " and finite");
}

}  // namespace train

}  // namespace redco
