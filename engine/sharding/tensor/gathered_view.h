#pragma once

#include "../call/call_plan.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <memory>

namespace redco::sharding {

/// Keeps a view consistent with its base when the base had to be gathered, so that the view is a
/// copy. The view is recomputed before it is read if the base has been written to since; writes to
/// the view are also written to the base. Both are collectives.
class GatheredView {
 public:
  /// Result number `result` (lists flattened) of a call of a view operator, which ran on the base
  /// redistributed to `worked_on`.
  GatheredView(const Call& call, size_t result, const Placements& worked_on);

  /// Whether the base has been written to since. Inference tensors do not count writes: always true
  /// for them.
  bool is_stale() const;

  /// Recomputes the view from the current base.
  at::Tensor taken_anew() const;

  /// Writes the values of the view to the base. Returns the GatheredView that it has from then on.
  std::shared_ptr<const GatheredView> written(ShardedTensorImpl& view) const;

 private:
  at::Tensor view_of(at::Tensor base) const;

  at::Tensor base_;
  Placements worked_on_;
  c10::OperatorHandle op_;
  torch::jit::Stack arguments_;
  size_t result_;
  int64_t version_;  ///< version of the base when view and base last agreed
};

/// Recomputes a gathered view if its base has been written to. Call it before reading a local
/// tensor.
void refresh(ShardedTensorImpl& impl);

/// Call after a write to a tensor's memory: counts the write, and writes a gathered view through to
/// its base.
void note_write(ShardedTensorImpl& impl);

/// Within its scope, operators on plain tensors go straight to LibTorch's kernels, without
/// sharding, autograd or autocast: the rule has already chosen the types.
struct BelowSharding {
  c10::impl::ExcludeDispatchKeyGuard sharding{c10::DispatchKey::Fake};
  c10::impl::ExcludeDispatchKeyGuard autocast{c10::autocast_dispatch_keyset};
  at::AutoDispatchBelowADInplaceOrView autograd;
};

/// Runs an operator on sharded tensors. Requires a BelowSharding guard.
void run_sharded(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace redco::sharding
