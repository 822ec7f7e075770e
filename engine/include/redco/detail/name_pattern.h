#pragma once

#include <redco/export.h>

#include <string>

namespace redco {

/// Whether a dotted name matches a pattern, in which `*` stands for any text: the whole name, or
/// its last parts. "q_proj.weight" matches every query projection.
REDCO_API bool matches_name(const std::string& pattern, const std::string& name);

}  // namespace redco
