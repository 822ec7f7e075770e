#pragma once

#include <ATen/core/stack.h>

namespace redco::sharding {

/// Adds kernels for the device meta to the operators of LibTorch that have none. They work while
/// the thread's Execution has no values; otherwise they throw c10::NotImplementedError, as LibTorch
/// does without them.
void add_meta_kernels();

/// Replaces the tensors of a stack by ones of the device meta with their sizes and strides, and
/// devices by it.
void put_on_meta(torch::jit::Stack& stack);

}  // namespace redco::sharding
