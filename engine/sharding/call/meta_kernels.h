#pragma once

namespace redco::sharding {

/// Adds kernels for the device meta to the operators of LibTorch that have none. They work while
/// the thread's Execution has no values; otherwise they throw c10::NotImplementedError, as LibTorch
/// does without them.
void add_meta_kernels();

}  // namespace redco::sharding
