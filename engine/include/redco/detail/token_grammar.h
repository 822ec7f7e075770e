#pragma once

#include <redco/export.h>
#include <redco/json.h>
#include <redco/tokenizer.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace redco {

/// The bytes of all tokens of a tokenizer, in order.
struct TokenTexts {
  explicit REDCO_API TokenTexts(const Tokenizer& tokenizer);

  struct Entry {
    std::string bytes;
    int64_t id;
    size_t shared;  ///< how many bytes it shares with the beginning of the entry before
  };
  std::vector<Entry> sorted;
  std::vector<std::string> by_id;                               ///< "" for those without bytes
  std::vector<std::pair<std::string, int64_t>> special_tokens;  ///< longest first
};

/// Says which tokens may follow others so that the text fits a grammar.
class REDCO_API TokenGrammar {
 public:
  /// `parts` is a list that the text consists of. A part is a string, in which names of special
  /// tokens stand for these; {"schema": S}, JSON that fits the schema; {"json": "object"}, any JSON
  /// object; or {"any_of": [parts, ...]}. Throws Error, which begins with `where`.
  TokenGrammar(const std::string& where, std::shared_ptr<const TokenTexts> texts,
               const Json& parts);
  ~TokenGrammar();

  struct Next {
    at::Tensor is_allowed;  ///< bool [vocab_size], of tokens that do not end the text
    bool has_any;
    bool is_complete;  ///< whether the text may end here
  };
  /// None if the tokens do not fit the grammar.
  std::optional<Next> after(const std::vector<int64_t>& tokens, int64_t vocab_size);

 private:
  struct Parts;
  std::shared_ptr<const TokenTexts> texts_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace redco
