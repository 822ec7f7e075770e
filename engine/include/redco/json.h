#pragma once

#include <redco/export.h>
#include <redco/tree.h>

#include <string>
#include <string_view>

namespace redco {

/// The value of a JSON text: null is none, whole numbers are integers where int64 holds them.
/// Throws Error, its text beginning with `where`, for anything else, a key that is there twice and
/// more than 500 levels.
REDCO_API Tree tree_from_json(const std::string& where, std::string_view text);

/// The inverse, indented by `indent` spaces a level or, where it is negative, on one line. An
/// empty tree of either kind is an object. Throws Error, beginning with `where`, for tensors,
/// numbers that are not finite and text that is not UTF-8.
REDCO_API std::string json_from_tree(const std::string& where, const Tree& tree, int indent = -1);

}  // namespace redco
