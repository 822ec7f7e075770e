#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace redco::sharding {

/// The kernel of aten::scaled_dot_product_attention for sharded tensors. Where context shards split
/// the positions of query, key and value, they exchange these for heads: each then attends with its
/// heads over all positions, and the result is exchanged back (DeepSpeed-Ulysses, arXiv
/// 2309.14509). Where their number does not divide the heads, queries stay split, and keys and
/// values are gathered. Few whole queries, as in generation, attend to the keys of each context
/// shard, and the results are combined.
void context_attention(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// The same of redco::segment_attention. Where their number does not divide the heads, queries are
/// gathered too.
void context_segment_attention(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace redco::sharding
