#pragma once

#include <redco/tree.h>

#include <cstddef>
#include <limits>
#include <string>

namespace redco::io {

/// Formats the first `most` entries of a list of predictions, or any other tree, as indented JSON
/// for reading: a tensor as nested lists of numbers with 7 digits or, if it has more than 1000
/// elements, or more than 32 in several dimensions, as a string with its dtype and shape;
/// non-finite numbers as strings; invalid UTF-8 replaced.
std::string outputs_json(const Tree& outputs, size_t most = std::numeric_limits<size_t>::max());

}  // namespace redco::io
