#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace redco::lua {

/// While it lives, this thread's operators work as if no function of vmap or grad ran: on plain
/// tensors. Theirs have levels around them, and no memory of their own.
struct OutsideOfLevels {
  c10::impl::ExcludeDispatchKeyGuard levels{
      c10::DispatchKeySet({c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                           c10::DispatchKey::FuncTorchDynamicLayerBackMode})};
};

}  // namespace redco::lua
