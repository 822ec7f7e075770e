// Finds added tokens in text.

#include "added_tokens.h"

#include "utf8.h"

#include <utf8proc.h>

#include <algorithm>

namespace redco::text {

namespace {

// Rust's \w, which includes alphabetic symbols (circled letters) and joiners.
bool is_word_character(char32_t c) {
  if (c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
      (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
      (c >= 0x1F170 && c <= 0x1F189))
    return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

bool is_inside_word(std::string_view text, Range range) {
  if (range.begin > 0 &&
      is_word_character(code_point_at(text, character_before(text, range.begin)).value))
    return true;
  return range.end < text.size() && is_word_character(code_point_at(text, range.end).value);
}

}  // namespace

void AddedTokenFinder::add(const AddedToken& token, std::string_view key) {
  if (key.empty()) return;
  // Of equal tokens the first is used, as in `tokenizers`.
  bool is_known = false;
  trie_.each_prefix(key, [&](size_t size, int32_t) { is_known |= size == key.size(); });
  if (is_known) return;
  starts_[static_cast<unsigned char>(key.front())] = true;
  trie_.add(key, int32_t(tokens_.size()));
  tokens_.push_back(token);
}

void AddedTokenFinder::cut(std::string_view text, const std::function<void(Range)>& between,
                           const std::function<void(Range, const AddedToken&)>& found) const {
  size_t done = 0;
  for (size_t i = 0; i < text.size() && !trie_.empty();) {
    Range match{i, i};
    int32_t index = 0;
    if (starts_[static_cast<unsigned char>(text[i])])
      trie_.each_prefix(text.substr(i), [&](size_t size, int32_t token) {
        match.end = i + size;
        index = token;
      });
    i = std::max(match.end, i + 1);
    if (match.begin == match.end) continue;
    const AddedToken& token = tokens_[size_t(index)];
    if (token.special && !finds_special_) continue;
    if (token.single_word && is_inside_word(text, match)) continue;
    if (token.lstrip) match.begin -= trailing_whitespace(text.substr(done, match.begin - done));
    if (token.rstrip) match.end += leading_whitespace(text.substr(match.end));
    if (match.begin > done) between({done, match.begin});
    found(match, token);
    done = match.end;
    i = std::max(i, done);
  }
  if (done < text.size()) between({done, text.size()});
}

}  // namespace redco::text
