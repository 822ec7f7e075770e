// The options for what layers of a model keep for the backward pass.

#pragma once

#include <redco/export.h>

#include <string>

namespace redco {

/// Which results the blocks that a loss marks (`redco.nn.block`) keep for backward. It computes the
/// rest again: less memory, more time.
enum class Recompute {
  none,       ///< all that backward needs
  selective,  ///< their inputs, and results that cost much to compute for their size
  blocks,     ///< their inputs
};

/// "none", "selective" or "blocks".
REDCO_API const char* name_of(Recompute recompute);
/// Throws Error if no value has this name; `where` begins its text.
REDCO_API Recompute parse_recompute(const std::string& name, const std::string& where);

}  // namespace redco
