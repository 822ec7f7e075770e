#pragma once

#include <string>
#include <utility>
#include <vector>

namespace redco::text {

/// How the byte-level BPE of a GGUF file cuts texts into words.
struct GgufWords {
  std::vector<std::string> expressions;  ///< applied in sequence
  bool ignore_merges = false;            ///< words that are tokens stay whole
  bool add_bos = false;  ///< texts begin with a token, unless the file says otherwise
};

/// Finds the words by the name of the pre-tokenizer. Throws Error, beginning with `where`, for an
/// unknown one.
const GgufWords& gguf_words(const std::string& where, const std::string& name);

/// A name for each way to cut, with the way.
std::vector<std::pair<std::string, GgufWords>> all_gguf_words();

}  // namespace redco::text
