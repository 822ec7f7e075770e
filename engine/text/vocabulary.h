#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace redco::text {

/// Allows look-ups in a map of strings by string_view.
struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

/// Tokens and their ids, which need not be consecutive.
class Vocabulary {
 public:
  /// If a token is added twice, the later id applies, and both ids map to it.
  void add(const std::string& token, int64_t id) {
    ids_.insert_or_assign(token, id);
    tokens_.insert_or_assign(id, token);
  }

  std::optional<int64_t> id(std::string_view token) const {
    auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

  /// Null if no token has this id.
  const std::string* token(int64_t id) const {
    auto found = tokens_.find(id);
    return found == tokens_.end() ? nullptr : &found->second;
  }

  /// The number of ids, and that of different tokens.
  size_t size() const { return tokens_.size(); }
  size_t n_different() const { return ids_.size(); }
  const auto& ids() const { return ids_; }

 private:
  std::unordered_map<std::string, int64_t, StringHash, std::equal_to<>> ids_;
  std::unordered_map<int64_t, std::string> tokens_;
};

}  // namespace redco::text
