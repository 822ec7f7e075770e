// BERT's normalizer and pre-tokenizer.

#include "normalizers.h"
#include "pre_tokenizers.h"
#include "unicode_8.h"
#include "utf8.h"

#include <utf8proc.h>

#include <algorithm>

namespace redco::text {

namespace {

bool is_control(char32_t c) {
  if (c < 0x80) return c < 0x20 || c == 0x7F;
  auto kind = category_in_unicode_8(c);
  return kind == UTF8PROC_CATEGORY_CC || kind == UTF8PROC_CATEGORY_CF ||
         kind == UTF8PROC_CATEGORY_CO || c == 0xFFFD;
}

bool is_blank(char32_t c) {
  if (c < 0x80) return c == ' ' || c == '\t' || c == '\n' || c == '\r';
  return c != 0x85 && is_whitespace(c);
}

bool is_ideograph(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B81F) ||
         // BERT begins at 2B820; `tokenizers` does not.
         (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) ||
         (c >= 0x2F800 && c <= 0x2FA1F);
}

bool is_punctuation(char32_t c) {
  if (c < 0x80)
    return c > ' ' && c < 0x7F && !(c >= '0' && c <= '9') && !((c | 32) >= 'a' && (c | 32) <= 'z');
  auto kind = category_in_unicode_8(c);
  return kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO;
}

template <class Keep>
void keep_characters(Text& text, Keep keep) {
  Text result(text.tracked());
  result.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    CodePoint c = code_point_at(text.bytes(), i);
    if (keep(c.value)) result.append(text, i, i + c.size);
    i += c.size;
  }
  text = std::move(result);
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

// Cleans text and makes it lower case in one pass.
void normalize_ascii(Text& text, const BertSpec& spec) {
  Text result(text.tracked());
  result.reserve(text.size());
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text.bytes()[i];
    if (spec.clean_text) {
      if (is_blank(char32_t(c)))
        c = ' ';
      else if (is_control(char32_t(c)))
        continue;
    }
    if (spec.lowercase && c >= 'A' && c <= 'Z') c = char(c | 32);
    if (text.tracked())
      result.append(std::string_view(&c, 1), text.origin(i));
    else
      bytes += c;
  }
  if (!text.tracked()) result.append(bytes, {});
  text = std::move(result);
}

void clean(Text& text, const BertSpec& spec) {
  Text result(text.tracked());
  result.reserve(text.size() + text.size() / 2);
  for (size_t i = 0; i < text.size();) {
    CodePoint c = code_point_at(text.bytes(), i);
    std::string_view character = std::string_view(text.bytes()).substr(i, c.size);
    Span origin = text.origin(i);
    i += c.size;
    if (spec.clean_text) {
      if (is_blank(c.value))
        character = " ";
      else if (is_control(c.value))
        continue;
    }
    bool apart = spec.spaces_around_ideographs && is_ideograph(c.value);
    if (apart) result.append(" ", origin);
    result.append(character, origin);
    if (apart) result.append(" ", origin);
  }
  text = std::move(result);
}

}  // namespace

Normalizer strip_accents() {
  return [](Text& text) {
    keep_characters(text, [](char32_t c) {
      auto kind = utf8proc_category(static_cast<utf8proc_int32_t>(c));
      return kind < UTF8PROC_CATEGORY_MN || kind > UTF8PROC_CATEGORY_ME;
    });
  };
}

Normalizer bert_normalization(BertSpec spec) {
  return
      [spec, decompose = unicode_normalization(UnicodeForm::nfd), lower = lowercase()](Text& text) {
        if (is_ascii(text.bytes())) return normalize_ascii(text, spec);
        clean(text, spec);
        if (spec.strip_accents) {
          decompose(text);
          keep_characters(
              text, [](char32_t c) { return category_in_unicode_8(c) != UTF8PROC_CATEGORY_MN; });
        }
        if (spec.lowercase) lower(text);
      };
}

PreTokenizer bert_words() {
  return [](Pieces& pieces) {
    std::vector<Range> result;
    result.reserve(std::max(pieces.ranges.size(), pieces.text.size() / 5));
    for (Range range : pieces.ranges) {
      size_t begin = range.begin;
      auto end_word = [&](size_t end) {
        if (end > begin) result.push_back({begin, end});
      };
      for (size_t i = range.begin, size = 0; i < range.end; i += size) {
        CodePoint c = code_point_at(pieces.text.bytes(), i);
        size = c.size;
        bool is_space = is_whitespace(c.value);
        if (!is_space && !is_punctuation(c.value)) continue;
        end_word(i);
        if (!is_space) result.push_back({i, i + size});
        begin = i + size;
      }
      end_word(range.end);
    }
    pieces.ranges = std::move(result);
  };
}

}  // namespace redco::text
