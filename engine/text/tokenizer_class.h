#pragma once

#include <map>
#include <string>

namespace redco::text {

/// What `transformers` knows of a class of tokenizers besides its files.
struct TokenizerClass {
  /// How the class matches its mask token if the files name only its text.
  enum class Mask { as_others, after_space, after_space_normalized };

  /// The special tokens by role, unless the files name others.
  std::map<std::string, std::string> special_tokens;
  bool pads_left = false;
  Mask mask = Mask::as_others;
  /// Whether add_prefix_space and trim_offsets also set the post-processor.
  bool sets_post_processor = false;
  /// Whether add_prefix_space = true also sets the steps of a sequence.
  bool sets_sequences = false;
};

/// The class with this name without "Fast"; the general one for other names.
const TokenizerClass& tokenizer_class(const std::string& name);

}  // namespace redco::text
