#pragma once

#include <redco/optim.h>

namespace redco::train {

/// The floating-point tensors of a tree: those that an optimizer may train.
std::vector<NamedTensor> floating_params(const Tree& params);

/// Those of `params` that the optimizer trains.
std::vector<NamedTensor> trained_by(const Optimizer& optimizer, std::vector<NamedTensor> params);

/// Selects the members of a group, in order.
std::vector<at::Tensor> select(const std::vector<at::Tensor>& tensors, const ParameterGroup& group);

/// Selects the state of a group's parameters under `slot`. Throws Error, which names the parameter,
/// if it is missing or its shape or strides differ: the fused operators access raw memory.
std::vector<at::Tensor> select(const Tree& state, const char* slot, const Update& update,
                               const ParameterGroup& group);

/// While it exists, `as_state` moves tensors of GPUs to the host, if `is_on`.
class StatesOnHost {
 public:
  explicit StatesOnHost(bool is_on);
  ~StatesOnHost();
  StatesOnHost(const StatesOnHost&) = delete;
  StatesOnHost& operator=(const StatesOnHost&) = delete;

 private:
  bool outer_;
};

/// Returns a new tensor of an optimizer's state. Each must pass through it as soon as it is made: a
/// GPU may not have room for all of them.
at::Tensor as_state(at::Tensor tensor);

/// A dictionary with zeros like each parameter, under its dotted name.
Tree zeros_like(const std::vector<NamedTensor>& params);

/// A 0-dim float32 zero on the parameters' device: the step count of an optimizer.
Tree zero_step(const std::vector<NamedTensor>& params);

/// Throws Error unless parameters and gradients of a group are dense and have the same strides.
void check_layout(const Update& update, const ParameterGroup& group);

/// Throws Error, which begins with `what`, if `filter` is a NamePatterns of which a pattern matches
/// none of the parameters.
void check_patterns(const char* what, const ParamFilter& filter,
                    const std::vector<NamedTensor>& params);

/// Wraps a schedule to throw Error for a step at which it is negative or not finite. `optimizer`
/// must be a string literal: the pointer is kept.
Schedule checked_learning_rate(const char* optimizer, Schedule learning_rate);
void check_betas(const char* optimizer, const std::array<double, 2>& betas);
void check_fraction(const char* optimizer, const char* option, double value);
void check_at_least(const char* optimizer, const char* option, double value, double least);

}  // namespace redco::train
