#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <lua.hpp>

namespace redco::lua {

/// `redco.checkpoint(f, ...)`: calls f(...) without keeping the tensors that its operators save for
/// the backward pass. In the backward pass f runs again, with the same random numbers.
int checkpoint(lua_State* L);

/// The same for a block of a model, which keeps what RecomputeBlocks says.
int checkpoint_block(lua_State* L);

/// Counts a block that a function marks, and pushes whether `checkpoint_block` is to call it.
int begins_recomputed_block(lua_State* L);

/// check_recompute(value, where): raises an error unless the value is a name of Recompute.
int check_recompute(lua_State* L);

/// Calls a function with its arguments. Before them: what its blocks keep (name_of(Recompute)).
int with_recomputed_blocks(lua_State* L);

/// keep_results_of(flops): what "selective" keeps must cost so many floating-point operations a
/// byte. For tests, whose models are small.
int keep_results_of(lua_State* L);

/// Pushes whether a backward pass runs the function of a `checkpoint` again, so that functions with
/// state leave it as the first run did.
int is_recomputing(lua_State* L);

/// Notifies a running checkpoint that an operator is about to draw from `generator`.
void about_to_draw(const at::Generator& generator);

/// Notifies a running checkpoint that a function is about to read `tensor`. Of operators it knows.
void about_to_read(const at::Tensor& tensor);

}  // namespace redco::lua
