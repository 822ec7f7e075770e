#pragma once

#include <redco/export.h>
#include <redco/tree.h>

#include <string>
#include <string_view>

namespace redco {

/// JSON as a tree: objects are dictionaries, arrays lists, null is none. Throws Error, its text
/// beginning with `name`, for what is no JSON (RFC 8259), has a key twice in one object, or nests
/// deeper than 100 levels.
REDCO_API Tree decode_json(const std::string& name, std::string_view text);

}  // namespace redco
