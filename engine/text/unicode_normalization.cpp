// Unicode's normalization forms, with origins as counted by `tokenizers`: the further characters of
// a decomposition count as inserted, a composed character covers all its components, and reordered
// marks keep their origins.
#include "normalizers.h"
#include "transformation.h"
#include "utf8.h"

#include <redco/error.h>

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

namespace redco::text {

namespace {

struct Character {
  utf8proc_int32_t value;
  ptrdiff_t change;  ///< as in Transformation
};

int class_of(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

// Whether the character may compose with the previous one: marks, and Hangul's vowels and final
// consonants.
bool may_join(utf8proc_int32_t c) {
  const auto* property = utf8proc_get_property(c);
  bool jamo = c >= 0x1160 && c <= 0x11FF;
  return property->combining_class != 0 || jamo || property->category == UTF8PROC_CATEGORY_MC ||
         property->category == UTF8PROC_CATEGORY_MN;
}

// The composition of two characters, if any.
std::optional<utf8proc_int32_t> composed(utf8proc_int32_t a, utf8proc_int32_t b) {
  if (!may_join(b)) return std::nullopt;
  std::string both;
  append_code_point(both, static_cast<char32_t>(a));
  append_code_point(both, static_cast<char32_t>(b));
  utf8proc_uint8_t* result = nullptr;
  auto size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(both.data()),
                           static_cast<utf8proc_ssize_t>(both.size()), &result,
                           static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  require(size >= 0, "Unicode normalization: ", utf8proc_errmsg(size));
  std::string text(reinterpret_cast<const char*>(result), size_t(size));
  std::free(result);
  CodePoint first = code_point_at(text, 0);
  if (first.size != text.size()) return std::nullopt;
  return static_cast<utf8proc_int32_t>(first.value);
}

// Receives the characters of one text and appends their normal form to the transformation.
class Normalization {
 public:
  Normalization(Transformation& result, bool composes, bool compatible)
      : result_(result),
        composes_(composes),
        options_(UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0)) {}

  void add(utf8proc_int32_t c) {
    constexpr int most = 32;  // a character decomposes into at most 18
    utf8proc_int32_t parts[most];
    int boundary = 0;
    auto n = utf8proc_decompose_char(c, parts, most, static_cast<utf8proc_option_t>(options_),
                                     &boundary);
    require(n >= 0 && n <= most, "Unicode normalization: ", utf8proc_errmsg(n));
    for (ptrdiff_t i = 0; i < n; ++i) {
      if (!may_join(parts[i])) flush();
      segment_.push_back({parts[i], i > 0});
    }
  }

  // Ends a segment: following characters cannot compose with it.
  void flush() {
    if (segment_.empty()) return;
    if (segment_.size() > 1) {
      put_in_order();
      if (composes_) compose();
    }
    for (const Character& c : segment_) {
      std::string bytes;
      append_code_point(bytes, static_cast<char32_t>(c.value));
      result_.append_character(bytes, c.change);
    }
    segment_.clear();
  }

 private:
  void put_in_order() {
    auto is_starter = [](const Character& c) { return class_of(c.value) == 0; };
    for (auto begin = segment_.begin(); begin != segment_.end();) {
      begin = std::find_if_not(begin, segment_.end(), is_starter);
      auto end = std::find_if(begin, segment_.end(), is_starter);
      std::stable_sort(begin, end, [](const Character& a, const Character& b) {
        return class_of(a.value) < class_of(b.value);
      });
      begin = end;
    }
  }

  // A mark composes with the last starter unless a mark of its class, or another starter, is
  // between them.
  void compose() {
    std::vector<Character> kept;
    std::optional<size_t> starter;
    int last_class = -1;  // of the last kept character after the starter
    for (const Character& c : segment_) {
      int own_class = class_of(c.value);
      if (starter && last_class < own_class) {
        if (auto whole = composed(kept[*starter].value, c.value)) {
          kept[*starter] = {*whole, kept[*starter].change + c.change - 1};
          continue;
        }
      }
      kept.push_back(c);
      last_class = own_class;
      if (own_class != 0) continue;
      starter = kept.size() - 1;
      last_class = -1;
    }
    segment_ = std::move(kept);
  }

  Transformation& result_;
  bool composes_;
  int options_;
  std::vector<Character> segment_;
};

}  // namespace

Normalizer unicode_normalization(UnicodeForm form) {
  bool composes = form == UnicodeForm::nfc || form == UnicodeForm::nfkc;
  bool compatible = form == UnicodeForm::nfkc || form == UnicodeForm::nfkd;
  return [composes, compatible](Text& text) {
    const std::string& bytes = text.bytes();
    if (std::all_of(bytes.begin(), bytes.end(), [](char c) { return (c & 0x80) == 0; })) return;
    Transformation result(text);
    Normalization normalization(result, composes, compatible);
    for (size_t i = 0; i < bytes.size();) {
      CodePoint c = code_point_at(bytes, i);
      normalization.add(static_cast<utf8proc_int32_t>(c.value));
      i += c.size;
    }
    normalization.flush();
    text = result.result();
  };
}

}  // namespace redco::text
