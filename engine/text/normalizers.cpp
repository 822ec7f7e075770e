// The normalizers of tokenizers.

#include "normalizers.h"

#include "transformation.h"
#include "trie.h"
#include "utf8.h"

#include <redco/error.h>

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>

namespace redco::text {

namespace {

size_t grapheme_end(std::string_view text, size_t begin) {
  CodePoint previous = code_point_at(text, begin);
  size_t end = begin + previous.size;
  utf8proc_int32_t state = 0;
  while (end < text.size()) {
    CodePoint next = code_point_at(text, end);
    if (previous.value < 0x80 && next.value < 0x80 && previous.value != '\r') break;
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(previous.value),
                                         static_cast<utf8proc_int32_t>(next.value), &state))
      break;
    end += next.size;
    previous = next;
  }
  return end;
}

// Implements SentencePiece's normalizer.
class SentencePieceNormalizer {
 public:
  explicit SentencePieceNormalizer(SentencePieceSpec spec) : spec_(std::move(spec)) {
    for (const std::string& piece : spec_.user_defined) user_defined_.add(piece, 0);
  }

  void operator()(Text& text) const {
    const std::string& bytes = text.bytes();
    std::string_view space = spec_.escape_whitespaces ? space_symbol : " ";
    size_t at = 0;
    while (spec_.remove_extra_whitespaces && at < bytes.size() && next(bytes, at).second == " ")
      at += next(bytes, at).first;
    if (at == bytes.size()) {
      text = Text(text.tracked());
      return;
    }
    Text result(text.tracked());
    result.reserve(bytes.size() + 3);
    if (spec_.add_dummy_prefix && !spec_.whitespace_as_suffix)
      result.append(space, text.origin(at));
    bool after_space = spec_.remove_extra_whitespaces;
    while (at < bytes.size()) {
      auto [size, part] = next(bytes, at);
      while (after_space && part.starts_with(' ')) part.remove_prefix(1);
      for (size_t i = 0; i < part.size(); ++i)
        result.append(part[i] == ' ' ? space : part.substr(i, 1), text.origin(at));
      if (!part.empty()) after_space = part.back() == ' ';
      if (!spec_.remove_extra_whitespaces) after_space = false;
      at += size;
    }
    if (spec_.remove_extra_whitespaces) {
      size_t end = result.size();
      while (std::string_view(result.bytes()).substr(0, end).ends_with(space)) end -= space.size();
      if (end < result.size()) result.crop(0, end);
    }
    if (spec_.add_dummy_prefix && spec_.whitespace_as_suffix)
      result.append(space, text.origin(bytes.size() - 1));
    text = std::move(result);
  }

 private:
  // The size in bytes of the next part of the text, and its replacement.
  std::pair<size_t, std::string_view> next(std::string_view text, size_t at) const {
    std::string_view rest = text.substr(at);
    size_t defined = 0;
    user_defined_.each_prefix(rest, [&](size_t size, int32_t) { defined = size; });
    if (defined > 0) return {defined, rest.substr(0, defined)};
    if (spec_.map)
      if (auto match = spec_.map->longest(rest)) return {match->size, match->replacement};
    size_t size = character_size(rest[0]);
    return {size, rest.substr(0, size)};
  }

  SentencePieceSpec spec_;
  Trie user_defined_;
};

}  // namespace

Normalizer prepend(std::string prefix) {
  return [prefix = std::move(prefix)](Text& text) {
    if (text.empty()) return;
    Text result(text.tracked());
    result.reserve(prefix.size() + text.size());
    result.append(prefix, text.origin(0));
    result.append(text, 0, text.size());
    text = std::move(result);
  };
}

Normalizer replace(Pattern pattern, std::string content) {
  return [pattern = std::move(pattern), content = std::move(content)](Text& text) {
    Text result(text.tracked());
    result.reserve(text.size());
    size_t done = 0;
    pattern.each_match(text.bytes(), [&](Range match) {
      result.append(text, done, match.begin);
      result.append(content, match.end > 0 ? text.origin(match.end - 1) : Span());
      done = match.end;
    });
    if (done == 0 && result.empty()) return;
    result.append(text, done, text.size());
    text = std::move(result);
  };
}

Normalizer strip(bool left, bool right) {
  return [left, right](Text& text) {
    size_t begin = left ? leading_whitespace(text.bytes()) : 0;
    std::string_view rest = std::string_view(text.bytes()).substr(begin);
    size_t end = text.size() - (right ? trailing_whitespace(rest) : 0);
    if (begin > 0 || end < text.size()) text.crop(begin, end);
  };
}

Normalizer lowercase() {
  return [](Text& text) {
    Text result(text.tracked());
    result.reserve(text.size());
    for (size_t i = 0; i < text.size();) {
      CodePoint c = code_point_at(text.bytes(), i);
      std::string lower;
      append_code_point(
          lower, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c.value))));
      // The only character whose lower case has two characters.
      if (c.value == 0x130) lower = "i\u0307";
      result.append(lower, text.origin(i));
      i += c.size;
    }
    text = std::move(result);
  };
}

Normalizer precompiled(std::shared_ptr<const CharsMap> map) {
  constexpr size_t largest_grapheme = 5;
  return [map = std::move(map)](Text& text) {
    Transformation result(text);
    std::string_view bytes = text.bytes();
    for (size_t begin = 0; begin < bytes.size();) {
      size_t end = grapheme_end(bytes, begin);
      std::string_view grapheme = bytes.substr(begin, end - begin);
      begin = end;
      if (grapheme.size() <= largest_grapheme)
        if (auto match = map->shortest(grapheme)) {
          result.append(count_characters(grapheme), match->replacement);
          continue;
        }
      for (size_t i = 0, size = 0; i < grapheme.size(); i += size) {
        size = character_size(grapheme[i]);
        auto match = map->shortest(grapheme.substr(i, size));
        result.append(1, match ? match->replacement : grapheme.substr(i, size));
      }
    }
    text = result.result();
  };
}

Normalizer sentencepiece_normalization(SentencePieceSpec spec) {
  // A std::function must be copyable; shared, so that the tries are not copied.
  auto normalizer = std::make_shared<const SentencePieceNormalizer>(std::move(spec));
  return [normalizer](Text& text) { (*normalizer)(text); };
}

}  // namespace redco::text
