// The memory of a Trainer on this device.

#include "memory.h"

#include "../../sharding/report/in_bytes.h"

#include <redco/sharding.h>
#include <redco/trainer.h>

#include <algorithm>
#include <iomanip>
#include <set>
#include <sstream>
#include <utility>

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

int64_t all_of(const TrainerMemory& memory) {
  return memory.params.here + memory.grads.here + memory.opt_state.here;
}

}  // namespace

namespace train {

TrainerMemory trainer_memory(const TrainStep& step) {
  TrainerMemory memory{held_by(step.state().params), {}, held_by(step.state().opt_state)};
  // A gradient has the layout of the optimizer's view of its parameter.
  for (const at::Tensor& view : step.params().optimizer_views()) add(memory.grads, view);
  return memory;
}

}  // namespace train

std::string memory_report(const std::vector<TrainerMemory>& trainers) {
  if (trainers.empty()) return "";
  const TrainerMemory& largest = *std::max_element(
      trainers.begin(), trainers.end(),
      [](const TrainerMemory& a, const TrainerMemory& b) { return all_of(a) < all_of(b); });
  std::ostringstream text;
  text << "Held on this device";
  if (trainers.size() > 1) text << " by the largest of " << trainers.size() << " Trainers";
  text << ":\n";
  const std::pair<const char*, const HeldBytes*> lines[] = {
      {"parameters", &largest.params},
      {"gradients", &largest.grads},
      {"optimizer states", &largest.opt_state}};
  for (const auto& [name, held] : lines)
    text << "  " << std::left << std::setw(17) << name << std::right << std::setw(11)
         << sharding::in_bytes(held->here) << " of " << sharding::in_bytes(held->whole) << "\n";
  std::string report = text.str();
  report.pop_back();
  return report;
}

}  // namespace redco
