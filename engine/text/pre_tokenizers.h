#pragma once

#include "regex.h"
#include "text.h"

#include <functional>
#include <string>

namespace redco::text {

/// Cuts the pieces of a text into smaller ones, the last of which are the words.
using PreTokenizer = std::function<void(Pieces&)>;

/// What becomes of what a Split finds.
enum class Delimiter { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// With `invert` what is between the matches counts as found.
PreTokenizer split(Pattern pattern, Delimiter delimiter, bool invert);

/// Writes each byte as a character of GPT-2's alphabet. `add_prefix_space`: a piece that does not
/// begin with a space gets one.
PreTokenizer bytes_to_characters();
PreTokenizer prefix_space();

/// GPT-2's expression for words, in which a space belongs to the word after it.
extern const char* const gpt2_words;

/// When a Metaspace pre-tokenizer puts its symbol before a piece that does not begin with it.
enum class PrependScheme { always, first, never };
PreTokenizer metaspace(std::string symbol, PrependScheme scheme, bool split);

/// Cuts before each run of space symbols: see `Model::has_independent_words`.
PreTokenizer split_before_space_symbols();

}  // namespace redco::text
