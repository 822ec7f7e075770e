#pragma once

#include <redco/tree.h>

#include <cstddef>
#include <limits>
#include <string>

namespace redco {

/// The first `most` entries of a list of predictions, or whatever else it is, as indented JSON for
/// a reader: a tensor as nested lists of numbers with 7 digits, or, of more than 1000 elements, as
/// a text of its type and shape; numbers that are not finite as texts; what is not UTF-8 replaced.
std::string outputs_json(const Tree& outputs, size_t most = std::numeric_limits<size_t>::max());

}  // namespace redco
