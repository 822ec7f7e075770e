// The post-processors of tokenizers.

#include "readers.h"
#include "utf8.h"

#include <algorithm>

namespace redco::text {

namespace {

// Spaces, plain or in GPT-2's alphabet.
bool is_space(char32_t c) { return c == 0x120 || is_whitespace(c); }

int64_t leading_spaces(std::string_view token) {
  int64_t n = 0;
  for (size_t i = 0; i < token.size(); ++n) {
    CodePoint c = code_point_at(token, i);
    if (!is_space(c.value)) break;
    i += c.size;
  }
  return n;
}

int64_t trailing_spaces(std::string_view token) {
  int64_t n = 0;
  for (size_t end = token.size(); end > 0; ++n) {
    end = character_before(token, end);
    if (!is_space(code_point_at(token, end).value)) break;
  }
  return n;
}

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

void trim_offsets(Encoding& encoding, bool add_prefix_space) {
  for (size_t i = 0; i < encoding.offsets.size(); ++i) {
    auto& [begin, end] = encoding.offsets[i];
    int64_t leading = leading_spaces(encoding.tokens[i]);
    int64_t trailing = trailing_spaces(encoding.tokens[i]);
    if (leading > 0) {
      // A single space may be the inserted prefix, which is not part of the text.
      if ((i == 0 || begin == 0) && add_prefix_space && leading == 1) leading = 0;
      begin = std::min(begin + leading, end);
    }
    if (trailing > 0 && end >= trailing) end = std::max(end - trailing, begin);
  }
}

size_t n_added(const std::vector<Template::Piece>& pieces) {
  size_t n = 0;
  for (const Template::Piece& piece : pieces) n += piece.ids.size();
  return n;
}

Template surround(const std::vector<AddedToken>& before, const std::vector<AddedToken>& after) {
  Template result;
  auto add = [](std::vector<Template::Piece>& pieces, const std::vector<AddedToken>& tokens,
                int64_t type) {
    for (const AddedToken& token : tokens)
      pieces.push_back({false, 0, {token.id}, {token.content}, type});
  };
  for (int sequence = 0; sequence < 2; ++sequence) {
    add(result.pair, before, sequence);
    result.pair.push_back(
        {.is_text = true, .sequence = sequence, .ids = {}, .tokens = {}, .type_id = sequence});
    add(result.pair, after, sequence);
    if (sequence == 0) result.single = result.pair;
  }
  return result;
}

Template surround_like_bert(const AddedToken& cls, const AddedToken& sep) {
  Template result = surround({cls}, {sep});
  result.pair.erase(result.pair.begin() + 3);
  return result;
}

Template surround_like_roberta(const AddedToken& cls, const AddedToken& sep) {
  Template result = surround({cls}, {sep});
  result.pair = result.single;
  result.pair.push_back(result.single[2]);
  result.pair.push_back({.is_text = true, .sequence = 1, .ids = {}, .tokens = {}, .type_id = 0});
  result.pair.push_back(result.single[2]);
  return result;
}

Encoding fill_template(const std::vector<Template::Piece>& pieces,
                       const std::vector<const Encoding*>& texts, const EncodeOptions& options) {
  Encoding all;
  for (const Template::Piece& piece : pieces) {
    size_t n = piece.ids.size();
    if (piece.is_text) {
      const Encoding& text = *texts[size_t(piece.sequence)];
      n = text.ids.size();
      append(all.ids, text.ids);
      append(all.tokens, text.tokens);
      append(all.offsets, text.offsets);
    } else {
      append(all.ids, piece.ids);
      if (options.with_tokens) append(all.tokens, piece.tokens);
      if (options.with_offsets) all.offsets.insert(all.offsets.end(), n, {0, 0});
    }
    all.special_tokens_mask.insert(all.special_tokens_mask.end(), n, piece.is_text ? 0 : 1);
    all.type_ids.insert(all.type_ids.end(), n, piece.type_id);
  }
  return all;
}

}  // namespace redco::text
