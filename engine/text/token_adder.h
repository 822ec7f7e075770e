#pragma once

#include "pipeline.h"

#include <cstdint>
#include <string>
#include <unordered_map>

namespace redco::text {

/// Adds tokens to a pipeline as `tokenizers` does.
class TokenAdder {
 public:
  explicit TokenAdder(Pipeline& pipeline);

  /// Adds a token with the number of the same text in the vocabulary, else with the next free one;
  /// its own number is not used. A token that is there matches as the new one from now on, and
  /// remains special. Returns false if nothing changes.
  bool add(AddedToken token);

  bool has(const std::string& content) const { return places_.count(content) != 0; }

 private:
  Pipeline& pipeline_;
  /// The place of a text among the pipeline's added tokens.
  std::unordered_map<std::string, size_t> places_;
  int64_t largest_ = -1;
};

}  // namespace redco::text
