// Counts operators as Lua instructions.
#include "confinement.h"

#include <utility>

namespace redco::lua {

namespace {

constexpr int64_t instructions_of_operator = 20;  // or more, if the operator takes long

thread_local Confinement* current_confinement = nullptr;

}  // namespace

Confinement::Confinement(Context& context)
    : context_(context),
      outer_(std::exchange(current_confinement, this)),
      memory_(context.tensor_memory.get()),
      rng_(context.rng) {}

Confinement::~Confinement() { current_confinement = outer_; }

bool Confinement::Meter::before(const c10::OperatorHandle&, torch::jit::Stack&) {
  if (Context* context = current()) take_instructions(*context, instructions_of_operator);
  return false;
}

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
