#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace redco::text {

/// The facts that `transformers` has of a class of tokenizers besides its files.
struct TokenizerClass {
  /// How the class matches its mask token if the files name only its text.
  enum class Mask { as_others, after_space, after_space_normalized };

  /// The special tokens without a role that the class has besides those of the files.
  struct Series {
    /// The key of tokenizer_config.json with their number, and the number without it.
    const char* key;
    int64_t count;
    std::vector<std::string> (*complete)(std::vector<std::string> given, int64_t count);
  };

  /// The special tokens by role, unless the files name others.
  std::map<std::string, std::string> special_tokens;
  bool pads_left = false;
  Mask mask = Mask::as_others;
  /// Roles whose tokens match as plain special ones if the files name only their text.
  std::set<std::string> plain_roles = {};
  const Series* series = nullptr;
  /// Whether the files of the tokenizer say add_prefix_space if its configuration does not.
  bool keeps_prefix_space = false;
  /// Whether add_prefix_space and trim_offsets also set the post-processor.
  bool sets_post_processor = false;
  /// Whether add_prefix_space = true also sets the steps of a sequence.
  bool sets_sequences = false;
};

/// The class with this name without "Fast"; the general one for other names.
const TokenizerClass& tokenizer_class(const std::string& name);

/// The class without "Fast" for models of a type, as config.json names it; "" for other types.
std::string tokenizer_class_of_model(const std::string& model_type);

}  // namespace redco::text
