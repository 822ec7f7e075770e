#pragma once

#include "regex.h"
#include "text.h"

#include <functional>
#include <string>

namespace redco::text {

/// Splits the pieces of a text into smaller ones; the final pieces are the words.
using PreTokenizer = std::function<void(Pieces&)>;

/// How a Split treats its matches.
enum class Delimiter { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// With `invert` the text between the matches counts as matched.
PreTokenizer split(Pattern pattern, Delimiter delimiter, bool invert);

/// Replaces each byte by a character of GPT-2's alphabet. `prefix_space` implements
/// add_prefix_space: it inserts a space before a piece that does not begin with one.
PreTokenizer bytes_to_characters();
PreTokenizer prefix_space();

/// GPT-2's expression for words; a space belongs to the following word.
extern const char* const gpt2_words;

/// When a Metaspace pre-tokenizer inserts its symbol before a piece that does not begin with it.
enum class PrependScheme { always, first, never };
PreTokenizer metaspace(std::string symbol, PrependScheme scheme, bool split);

/// BERT's words: runs of characters between whitespace, and single punctuation marks.
PreTokenizer bert_words();

/// Splits before each run of space symbols: see `Model::has_independent_words`.
PreTokenizer split_before_space_symbols();

}  // namespace redco::text
