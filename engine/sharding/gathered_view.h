#pragma once

#include "plan.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <memory>

namespace redco::sharding {

/// Remembers the base of a view that had to be gathered, and so holds a copy: no write is lost.
/// Once the base has been written to, the view is taken anew before it is read; what is written to
/// the view is written to the base too. Both are collectives.
class GatheredView {
 public:
  /// Result number `result` of a call of a view operator, lists taken apart, which worked on the
  /// base in these placements.
  GatheredView(const Call& call, size_t result, const Placements& worked_on);

  /// Whether the base has been written to since. Tensors made in inference mode do not count
  /// writes: always, then.
  bool is_stale() const;

  /// The view of the base as it is now.
  at::Tensor taken_anew() const;

  /// Writes the values of the view to the base. Returns what the view remembers from now on.
  std::shared_ptr<const GatheredView> written(ShardedTensorImpl& view) const;

 private:
  at::Tensor view_of(at::Tensor base) const;

  at::Tensor base_;
  Placements worked_on_;
  c10::OperatorHandle op_;
  torch::jit::Stack arguments_;
  size_t result_;
  int64_t version_;  ///< the base's when both had the same values
};

/// Takes a gathered view anew if its base has been written to. All that reads a part calls this.
void refresh(ShardedTensorImpl& impl);

/// The memory of a tensor has been written to: counts that, and writes through to the base of a
/// gathered view.
void note_write(ShardedTensorImpl& impl);

/// While it lives, operators on plain tensors reach LibTorch's kernels and nothing else: neither
/// sharding nor autograd nor autocast, for a rule has already chosen the types.
struct BelowSharding {
  c10::impl::ExcludeDispatchKeyGuard sharding{c10::DispatchKey::Fake};
  c10::impl::ExcludeDispatchKeyGuard autocast{c10::autocast_dispatch_keyset};
  at::AutoDispatchBelowADInplaceOrView autograd;
};

/// Runs an operator on sharded tensors, BelowSharding.
void run_sharded(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace redco::sharding
