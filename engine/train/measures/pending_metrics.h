#pragma once

#include <redco/export.h>
#include <redco/tree.h>

#include <c10/core/Event.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace redco::train {

/// The metrics of one step while they are copied to the host. The constructor starts the copy of
/// device tensors without waiting; `read`, called once later work is queued, waits only for that
/// copy.
class REDCO_API PendingMetrics {
 public:
  /// `metrics`: a dictionary of numbers and tensors of one element; throws Error for others.
  /// `is_left_out`: whether the step was skipped because of its gradients.
  PendingMetrics(int64_t step, const Tree& metrics, bool is_left_out);

  int64_t step() const { return step_; }
  bool is_left_out() const { return is_left_out_; }
  const std::map<std::string, double>& read();

 private:
  int64_t step_;
  bool is_left_out_;
  std::map<std::string, double> numbers_;
  std::vector<std::string> names_;  // of `copies_`
  at::Tensor copies_;               // on the host
  std::optional<c10::Event> copied_;
};

}  // namespace redco::train
