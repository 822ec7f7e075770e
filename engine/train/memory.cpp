// The memory of a Trainer on this device.

#include <redco/sharding.h>
#include <redco/trainer.h>

#include <set>

namespace redco {

namespace {

void add(HeldBytes& held, const at::Tensor& tensor) {
  held.here += int64_t(memory_of(tensor).nbytes());
  held.whole += tensor.numel() * int64_t(tensor.element_size());
}

HeldBytes held_by(const Tree& tree) {
  HeldBytes held;
  std::set<const void*> counted;  // tied weights once
  for (const auto& [name, tensor] : named_tensors(tree))
    if (counted.insert(tensor.unsafeGetTensorImpl()).second) add(held, tensor);
  return held;
}

}  // namespace

TrainerMemory Trainer::memory() const {
  TrainerMemory memory{held_by(state_.params), {}, held_by(state_.opt_state)};
  // A gradient has the layout of the optimizer's view of its parameter.
  for (const at::Tensor& param : is_laid_out_ ? updates_ : leaves_) add(memory.grads, param);
  return memory;
}

}  // namespace redco
