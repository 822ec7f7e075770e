#include "pending_metrics.h"

#include "../../mesh/device_wait.h"

#include <redco/error.h>
#include <redco/sharding.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace redco::train {

using namespace mesh;

PendingMetrics::PendingMetrics(int64_t step, const Tree& metrics, bool is_left_out)
    : step_(step), is_left_out_(is_left_out) {
  std::vector<at::Tensor> on_device;
  for (const auto& [name, value] : metrics.as<Tree::Dict>()) {
    if (value.is<int64_t>()) {
      numbers_[name] = double(value.as<int64_t>());
    } else if (value.is<double>()) {
      numbers_[name] = value.as<double>();
    } else {
      require(value.is_tensor() && value.tensor().numel() == 1, "train_step_fn: the metric '", name,
              "' must be a number or a tensor of one element");
      at::Tensor tensor = full(value.tensor());
      if (tensor.is_cpu() || tensor.is_meta()) {  // meta: of a step that is only planned
        numbers_[name] = tensor.item<double>();
      } else {
        names_.push_back(name);
        on_device.push_back(tensor.detach().reshape({}).to(at::kDouble));
      }
    }
  }
  if (on_device.empty()) return;
  at::Tensor stacked = at::stack(on_device);
  copies_ = at::empty(stacked.sizes(), at::TensorOptions(at::kDouble).pinned_memory(true));
  copies_.copy_(stacked, /*non_blocking=*/true);
  copied_.emplace(stacked.device().type());
  copied_->record(c10::impl::VirtualGuardImpl(stacked.device().type()).getStream(stacked.device()));
}

const std::map<std::string, double>& PendingMetrics::read() {
  if (copied_) {
    wait_for(*copied_);
    copied_.reset();
    for (size_t i = 0; i < names_.size(); ++i)
      numbers_[names_[i]] = copies_[int64_t(i)].item<double>();
  }
  return numbers_;
}

}  // namespace redco::train
