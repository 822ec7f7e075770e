#pragma once

#include <ATen/core/Tensor.h>

#include <lua.hpp>
#include <string>

namespace redco::lua {

/// The module `redco.torch.native`: every ATen operator, and what schemas cannot give. Also makes
/// the Tensor and Generator types.
int open_torch(lua_State* L);

/// `Rng` and `with_rng` in the table of `redco` on top of the stack.
void add_rng(lua_State* L);

/// The module `redco.functorch`: the levels that vmap and grad run a function on.
int open_functorch(lua_State* L);

// The parts of `open_torch`, a file each. Those that add functions take the table for them on top
// of the stack.
void make_generator_type(lua_State* L);
void add_generators(lua_State* L);        // torch.Generator, torch.manual_seed
void add_factories(lua_State* L);         // torch.tensor
void add_autograd(lua_State* L);          // torch.no_grad, torch.autograd
void add_backward(lua_State* L);          // Tensor:backward
void add_storage(lua_State* L);           // torch.save, torch.load
void add_jit(lua_State* L);               // torch.jit
void add_cuda(lua_State* L);              // torch.cuda
void add_backends(lua_State* L);          // torch.backends, and switches beside it
void add_tensor_methods(lua_State* L);    // the table of Tensor's methods
void add_tensor_operators(lua_State* L);  // the metatable: arithmetic, comparison, #, tostring

/// f(...) without cuDNN's attention, where another fused one is allowed.
int without_cudnn_attention(lua_State* L);

/// `t[key]` and `t[key] = value` for keys that are no names: integers, lists of indices and
/// slices, tensors.
int index_tensor(lua_State* L);
int assign_tensor(lua_State* L);

/// The tensor in PyTorch's layout; large ones are summarised. Never needs more than the elements
/// it shows.
std::string format_tensor(const at::Tensor& tensor);

}  // namespace redco::lua
