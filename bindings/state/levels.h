#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace redco::lua {

/// While it exists, this thread's operators see plain tensors, as if no function of vmap or grad
/// ran. The tensors of these functions are wrapped in levels and have no memory.
struct OutsideOfLevels {
  c10::impl::ExcludeDispatchKeyGuard levels{
      c10::DispatchKeySet({c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                           c10::DispatchKey::FuncTorchDynamicLayerBackMode})};
};

}  // namespace redco::lua
