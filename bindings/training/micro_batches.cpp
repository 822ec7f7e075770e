// redco.gather_micro_batches.
#include "state/registry.h"
#include "state/tensor.h"
#include "training_objects.h"

#include <redco/detail/micro_batches.h>

namespace redco::lua {

namespace {

int gather(lua_State* L) {
  push_tensor(L, gather_micro_batches(check_tensor(L, 1)));
  return 1;
}

}  // namespace

void add_micro_batches(lua_State* L) {
  register_functions(
      L, "redco.",
      {{"gather_micro_batches", gather,
        "gather_micro_batches(x: Tensor [b, ...]) -> Tensor [B, ...]\n"
        "In a loss_fn, returns x of all micro-batches of the step, in their order, so that a loss "
        "can compare each example with those of the whole batch: the similarities of vectors, for "
        "example. The loss is then that of the whole batch, however it is cut. The Trainer first "
        "computes x of all micro-batches without gradients; then each computes the loss, with the "
        "gradients of its own x. A loss_fn must call it as often in each micro-batch. Elsewhere it "
        "returns x. Over processes a batch is whole without it."}});
}

}  // namespace redco::lua
