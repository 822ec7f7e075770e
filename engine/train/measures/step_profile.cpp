#include "step_profile.h"

#include <redco/error.h>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <cstdlib>
#include <set>
#include <utility>

namespace redco::train {

namespace profiler = torch::autograd::profiler;

StepProfile::StepProfile(const std::optional<ProfileOptions>& steps, c10::DeviceType device,
                         const std::string& workdir, RunLog& log)
    : steps_(steps), device_(device), log_(log) {
  if (!steps_) return;
  std::string range = std::to_string(steps_->first) + "-" + std::to_string(steps_->last);
  require(0 <= steps_->first && steps_->first <= steps_->last, "fit: profile: steps = ", range,
          " are none: give the first and the last one");
  require(!workdir.empty(),
          "fit: profile: the trace is written to the work folder: give the Deployer a workdir");
  path_ = workdir + "/profile_step" + range + ".json";
  if (!log_.writes_files()) steps_.reset();
}

StepProfile::~StepProfile() { finish(); }

// Otherwise the trace lacks the end of the last steps and contains the end of earlier ones.
void StepProfile::wait_for_device() const {
  if (device_ == c10::kCPU) return;
  c10::impl::VirtualGuardImpl guard(device_);
  guard.synchronizeDevice(guard.getDevice().index());
}

void StepProfile::start() {
  namespace impl = torch::profiler::impl;
  impl::ProfilerConfig config(impl::ProfilerState::KINETO, /*report_input_shapes=*/true);
  std::set<impl::ActivityType> activities{impl::ActivityType::CPU};
  if (device_ == c10::kCUDA) activities.insert(impl::ActivityType::CUDA);
  // The profiler's library logs to standard error unless this variable is set when it starts.
  bool is_set = std::getenv("KINETO_LOG_LEVEL") != nullptr;
  if (!is_set) setenv("KINETO_LOG_LEVEL", "99", 0);
  wait_for_device();
  profiler::prepareProfiler(config, activities);
  if (!is_set) unsetenv("KINETO_LOG_LEVEL");
  profiler::enableProfiler(config, activities);
  is_running_ = true;
}

void StepProfile::finish() {
  if (!std::exchange(is_running_, false)) return;
  try {
    wait_for_device();
    profiler::disableProfiler()->save(path_);
    log_.info("The trace of the profiled steps is " + path_);
  } catch (const std::exception& error) {
    log_.info(std::string("The trace of the profiled steps is lost: ") + error.what());
  }
}

StepProfile::Step::Step(StepProfile& profile, int64_t number) : profile_(profile), number_(number) {
  if (!profile_.steps_) return;
  if (number_ == profile_.steps_->first && !profile_.is_running_) profile_.start();
  if (!profile_.is_running_) return;
  range_.emplace(at::RecordScope::USER_SCOPE);
  range_->before("step " + std::to_string(number_));
}

StepProfile::Step::~Step() {
  range_.reset();
  if (profile_.steps_ && number_ >= profile_.steps_->last) profile_.finish();
}

}  // namespace redco::train
