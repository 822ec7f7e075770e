#pragma once

#include "arguments.h"
#include "context.h"

#include <redco/dataset.h>
#include <redco/tree.h>

#include <ATen/core/Generator.h>

#include <lua.hpp>

namespace redco::lua {

/// A list of examples on the Lua side as the engine sees it: `collate_fn` is called with the list
/// of the examples of a batch. `name` says in errors which list it is.
Dataset make_dataset(const Ref& examples, const Ref& collate_fn, const std::string& name);

/// The argument `collate`.
Collate check_collate(NamedArguments& args);

/// The number of entries of the list at `index`; an error when it is no list.
int64_t check_list(lua_State* L, int index, const std::string& what);

}  // namespace redco::lua
