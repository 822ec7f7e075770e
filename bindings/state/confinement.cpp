// Makes operators take instructions. LibTorch registers nothing on the dispatch key
// TESTING_ONLY_GenericMode, which is above all keys it uses: a Confinement includes it, so that
// every operator call on the thread passes through the fallback here.
#include "confinement.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <utility>

namespace redco::lua {

namespace {

constexpr c10::DispatchKey metering = c10::DispatchKey::TESTING_ONLY_GenericMode;
constexpr c10::DispatchKeySet below_this(c10::DispatchKeySet::FULL_AFTER, metering);

constexpr int64_t instructions_of_operator = 20;  // or more, if it takes long

thread_local Confinement* current_confinement = nullptr;

void meter(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  Context* context = Confinement::current();
  if (context == nullptr) {
    op.redispatchBoxed(keys & below_this, stack);
    return;
  }
  take_instructions(*context, instructions_of_operator);
  op.redispatchBoxed(keys & below_this, stack);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&meter>());
}

}  // namespace

Confinement::Confinement(Context& context)
    : context_(context),
      outer_(std::exchange(current_confinement, this)),
      memory_(context.tensor_memory.get()),
      rng_(context.rng),
      metered_(metering) {}

Confinement::~Confinement() { current_confinement = outer_; }

Context* Confinement::current() {
  return current_confinement == nullptr ? nullptr : &current_confinement->context_;
}

Confinement::Outside::Outside()
    : inner_(std::exchange(current_confinement, nullptr)), memory_(nullptr) {
  if (inner_ != nullptr) modes_ = std::make_unique<at::ThreadLocalStateGuard>(inner_->modes_);
}

Confinement::Outside::~Outside() {
  current_confinement = inner_;
  if (inner_ != nullptr) restart_step_clock();
}

}  // namespace redco::lua
