// The parts of the Lua module torch.

#pragma once

#include <ATen/core/Tensor.h>

#include <lua.hpp>
#include <string>

namespace redco::lua {

/// The module `redco.torch.native`: all ATen operators, and functions that schemas cannot describe.
/// Also creates the Tensor and Generator types.
int open_torch(lua_State* L);

/// Adds `Rng` and `with_rng` to the table of `redco` on top of the stack.
void add_rng(lua_State* L);

/// The module `redco.functorch`: the levels on which vmap and grad run a function.
int open_functorch(lua_State* L);

// The parts of `open_torch`, one per file. Those that add functions take their table on top of the
// stack.
void make_generator_type(lua_State* L);
void make_captured_type(lua_State* L);
void add_generators(lua_State* L);        // torch.Generator, torch.manual_seed
void add_factories(lua_State* L);         // torch.tensor
void add_autograd(lua_State* L);          // torch.no_grad, torch.autograd
void add_backward(lua_State* L);          // Tensor:backward
void add_storage(lua_State* L);           // torch.save, torch.load
void add_jit(lua_State* L);               // torch.jit
void add_cuda(lua_State* L);              // torch.cuda
void add_backends(lua_State* L);          // torch.backends and related switches
void add_tensor_methods(lua_State* L);    // the table of Tensor's methods
void add_tensor_operators(lua_State* L);  // the metatable: arithmetic, comparison, #, tostring

/// Calls f(...) without cuDNN's attention if another fused kernel is enabled.
int without_cudnn_attention(lua_State* L);

/// Returns a CapturedFunction of a function that returns a tensor. It is captured if the given
/// tensor is on a GPU.
int captured(lua_State* L);

/// Returns the type of the device that a tensor is on or, in a plan, will be on: "cpu", "cuda".
int device_type(lua_State* L);

/// `t[key]` and `t[key] = value` for keys other than names: integers, tensors, lists of indices and
/// slices.
int index_tensor(lua_State* L);
int assign_tensor(lua_State* L);

/// Formats a tensor like PyTorch. Large tensors are summarised; reads only the elements shown.
std::string format_tensor(const at::Tensor& tensor);

}  // namespace redco::lua
