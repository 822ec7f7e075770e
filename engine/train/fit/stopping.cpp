#include "stopping.h"

#include "../../mesh/alone.h"

#include <redco/detail/forced_stop.h>

#include <ATen/ops/tensor.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <atomic>
#include <exception>
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
      start_(Clock::now()) {
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
  agree(steps_);
  return reason_;
}

void Stopping::agree(Pace& pace) {
  if (reason_) return;
  auto now = Clock::now();
  int signal = this->signal();
  bool is_over =
      max_seconds_ && std::chrono::duration<double>(now - start_).count() >= *max_seconds_;
  Group& world = mesh_->world();
  if (world.size() > 1) {
    if (++pace.steps_since < pace.steps_between) return;
    double elapsed = std::chrono::duration<double>(now - pace.agreed).count();
    // The slowest process proposes the fewest steps; all processes use its number.
    auto proposal = int64_t(double(pace.steps_since) / std::clamp(elapsed, 1e-3, 1e3));
    at::Tensor told =
        at::tensor({int64_t(signal), int64_t(is_over), -proposal}, at::kLong).to(mesh_->device());
    told = world.all_reduce(told, ReduceOp::max).cpu();
    signal = int(told[0].item<int64_t>());
    is_over = told[1].item<int64_t>() != 0;
    pace.steps_between = std::clamp<int64_t>(-told[2].item<int64_t>(), 1, 2 * pace.steps_between);
    pace.steps_since = 0;
    pace.agreed = now;
  }
  if (signal != 0)
    reason_ = Reason{signal};
  else if (is_over)
    reason_ = Reason{0};
}

namespace {
// The running part of this thread, and the innermost loop of the part.
thread_local Stopping* running = nullptr;
thread_local StopCheck* loop = nullptr;
}  // namespace

bool Stopping::run(const std::function<void()>& part) {
  Stopping* outer = std::exchange(running, this);
  auto ended = c10::make_scope_exit([&] { running = outer; });
  was_ended_ = false;
  try {
    part();
  } catch (const std::exception&) {
    if (!was_ended_) throw;
  }
  // A script may have caught Stopped.
  if (was_ended_) return false;
  Pace now;
  agree(now);
  return true;
}

void Stopping::check(Pace& pace) {
  agree(pace);
  if (!reason_) return;
  was_ended_ = true;
  throw Stopped(reason_->signal, "the run ends, and its evaluation with it");
}

StopCheck::StopCheck() : stopping_(running), outer_(std::exchange(loop, this)) {}
StopCheck::~StopCheck() { loop = outer_; }

void StopCheck::before_batch() {
  inside_ = {};
  if (stopping_ != nullptr && !mesh::Alone::is_on()) stopping_->check(batches_);
}

}  // namespace train

void check_stop() {
  if (train::running == nullptr) return;
  train::Stopping& stopping = *train::running;
  train::Stopping::Pace now;
  if (stopping.mesh_->world().size() == 1)
    stopping.check(now);
  else if (train::loop != nullptr && train::loop->stopping_ == &stopping && !mesh::Alone::is_on())
    stopping.check(train::loop->inside_);
}

StopListener::StopListener(std::shared_ptr<StopRequest> request)
    : stopping_(std::make_unique<train::Stopping>(nullptr, std::nullopt, std::move(request))) {}
StopListener::~StopListener() = default;
int StopListener::signal() const { return stopping_->signal(); }

}  // namespace redco
