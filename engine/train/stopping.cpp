#include "stopping.h"

#include <redco/detail/forced_stop.h>

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <atomic>
#include <utility>

namespace redco {

namespace {

StopRequest of_process;
static_assert(std::atomic<int>::is_always_lock_free, "used inside a signal handler");

}  // namespace

bool StopRequest::make(int signal) noexcept {
  if (n_listening_ == 0) return false;
  signal_ = signal;
  note_asked_to_end(signal);
  return true;
}

bool request_stop(int signal) noexcept { return of_process.make(signal); }

namespace train {

Stopping::Stopping(std::shared_ptr<const Mesh> mesh, std::optional<double> max_seconds,
                   std::shared_ptr<StopRequest> request)
    : mesh_(std::move(mesh)),
      max_seconds_(max_seconds),
      request_(std::move(request)),
      start_(Clock::now()),
      agreed_(start_) {
  for (StopRequest* each : {&of_process, request_.get()})
    if (each != nullptr && each->n_listening_++ == 0) each->signal_ = 0;
}

Stopping::~Stopping() {
  for (StopRequest* each : {&of_process, request_.get()})
    if (each != nullptr) --each->n_listening_;
}

int Stopping::signal() const {
  int of_all = of_process.signal_;
  return of_all != 0 || request_ == nullptr ? of_all : int(request_->signal_);
}

std::optional<Stopping::Reason> Stopping::after_step() {
  auto now = Clock::now();
  int signal = this->signal();
  bool is_over =
      max_seconds_ && std::chrono::duration<double>(now - start_).count() >= *max_seconds_;
  Group& world = mesh_->world();
  if (world.size() > 1) {
    if (++steps_since_ < steps_between_) return std::nullopt;
    double elapsed = std::chrono::duration<double>(now - agreed_).count();
    // The slowest process proposes the fewest steps; all processes use its number.
    auto proposal = int64_t(double(steps_since_) / std::clamp(elapsed, 1e-3, 1e3));
    at::Tensor told =
        at::tensor({int64_t(signal), int64_t(is_over), -proposal}, at::kLong).to(mesh_->device());
    told = world.all_reduce(told, ReduceOp::max).cpu();
    signal = int(told[0].item<int64_t>());
    is_over = told[1].item<int64_t>() != 0;
    steps_between_ = std::clamp<int64_t>(-told[2].item<int64_t>(), 1, 2 * steps_between_);
    steps_since_ = 0;
    agreed_ = now;
  }
  if (signal != 0) return Reason{signal};
  if (is_over) return Reason{0};
  return std::nullopt;
}

}  // namespace train

}  // namespace redco
