#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <lua.hpp>

namespace redco::lua {

/// `redco.checkpoint(f, ...)`: calls f(...) without keeping the tensors that its operators save for
/// the backward pass. In the backward pass f runs again, with the same random numbers.
int checkpoint(lua_State* L);

/// Counts a block that a function marks, and pushes whether it is to be called by `checkpoint`.
int begins_recomputed_block(lua_State* L);

/// Calls a function with its arguments, with RecomputeBlocks on.
int with_recomputed_blocks(lua_State* L);

/// Pushes whether a backward pass runs the function of a `checkpoint` again, so that functions with
/// state leave it as the first run did.
int is_recomputing(lua_State* L);

/// Notifies a running checkpoint that an operator is about to draw from `generator`.
void about_to_draw(const at::Generator& generator);

/// Notifies a running checkpoint that a function is about to read `tensor`. Of operators it knows.
void about_to_read(const at::Tensor& tensor);

}  // namespace redco::lua
