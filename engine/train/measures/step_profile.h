#pragma once

#include <redco/run_log.h>
#include <redco/trainer.h>

#include <ATen/record_function.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

namespace redco::train {

/// Traces a range of steps with LibTorch's profiler, for Perfetto (ui.perfetto.dev) or
/// chrome://tracing: operators with their shapes, collectives, and the named parts of a step. The
/// trace is written after the last step, or when training ends before.
class StepProfile {
 public:
  /// Does nothing without `steps`. Logs the path of the trace. Throws Error for an invalid range of
  /// steps.
  StepProfile(const std::optional<ProfileOptions>& steps, c10::DeviceType device,
              const std::string& workdir, RunLog& log);
  ~StepProfile();
  StepProfile(const StepProfile&) = delete;
  StepProfile& operator=(const StepProfile&) = delete;

  /// Marks a step: everything that runs while it exists.
  class Step {
   public:
    Step(StepProfile& profile, int64_t number);
    ~Step();
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    StepProfile& profile_;
    int64_t number_;
    std::optional<at::RecordFunction> range_;
  };

 private:
  void start();
  void finish();
  void wait_for_device() const;

  std::optional<ProfileOptions> steps_;
  c10::DeviceType device_;
  std::string path_;
  RunLog& log_;
  bool is_running_ = false;
};

}  // namespace redco::train
