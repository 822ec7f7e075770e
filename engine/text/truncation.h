#pragma once

#include <redco/tokenizer.h>

#include <vector>

namespace redco::text {

/// Cuts one text, or the texts of a pair, to `room` tokens in total. Returns the parts of each: the
/// first is what is kept; with `options.with_overflow` the rest follows in parts of that length.
std::vector<std::vector<Encoding>> truncate(const std::vector<Encoding>& texts, size_t room,
                                            Side side, const EncodeOptions& options);

}  // namespace redco::text
