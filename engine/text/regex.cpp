// Patterns of tokenizers, matched with PCRE2.

#define PCRE2_CODE_UNIT_WIDTH 8
#include "regex.h"

#include "utf8.h"

#include <redco/detail/regular_expression.h>
#include <redco/error.h>

#include <pcre2.h>

#include <cctype>

namespace redco::text {

namespace {

// A limit on backtracking, far above the need of any tokenizer's expression even on long texts.
constexpr uint32_t match_limit = 50'000'000;
constexpr size_t jit_stack_size = 1 << 20;

// Character classes that mean other characters in PCRE2 than in Oniguruma and Rust: PCRE2 counts
// U+180E as a blank, and does not count marks as word characters. Expressions get their members
// instead.
struct CharacterClass {
  char letter;
  std::string_view members;
};
constexpr CharacterClass character_classes[] = {{'s', "\\p{Z}\\t-\\r\\x{85}"},
                                                {'w', "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"}};

std::string with_unicode_classes(const std::string& expression) {
  std::string result;
  bool in_class = false;
  for (size_t i = 0; i < expression.size(); ++i) {
    char c = expression[i];
    if (c != '\\' || i + 1 == expression.size()) {
      if (c == '[') in_class = true;
      if (c == ']') in_class = false;
      result += c;
      continue;
    }
    char escaped = expression[++i];
    const CharacterClass* found = nullptr;
    bool is_negated = false;
    for (const CharacterClass& each : character_classes) {
      bool negated = escaped == std::toupper(static_cast<unsigned char>(each.letter));
      if (escaped != each.letter && (!negated || in_class)) continue;
      found = &each;
      is_negated = negated;
    }
    if (found == nullptr)
      result.append({c, escaped});
    else if (in_class)
      result += found->members;
    else
      result.append(is_negated ? "[^" : "[").append(found->members).append("]");
  }
  return result;
}

std::string pcre2_message(int code) {
  PCRE2_UCHAR message[256];
  pcre2_get_error_message(code, message, sizeof message);
  return reinterpret_cast<const char*>(message);
}

template <auto release>
struct Release {
  template <class T>
  void operator()(T* object) const {
    release(object);
  }
};
template <class T, auto release>
using Owned = std::unique_ptr<T, Release<release>>;

// The state for matching, one per thread, because matching is never nested.
struct Matcher {
  Owned<pcre2_match_context, pcre2_match_context_free> context{pcre2_match_context_create(nullptr)};
  Owned<pcre2_jit_stack, pcre2_jit_stack_free> stack{
      pcre2_jit_stack_create(32 * 1024, jit_stack_size, nullptr)};
  Owned<pcre2_match_data, pcre2_match_data_free> data{pcre2_match_data_create(1, nullptr)};

  Matcher() {
    require(context && stack && data, "out of memory for regular expressions");
    pcre2_set_match_limit(context.get(), match_limit);
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

}  // namespace

struct Pattern::Compiled {
  Owned<pcre2_code, pcre2_code_free> code;
};

namespace {

Owned<pcre2_code, pcre2_code_free> compiled(const std::string& where, const std::string& expression,
                                            const std::string& spelled) {
  int error = 0;
  size_t position = 0;
  Owned<pcre2_code, pcre2_code_free> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelled.data()), spelled.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &position, nullptr));
  require(code != nullptr, where, "the regular expression '", expression,
          "' is not understood: ", pcre2_message(error));
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // without it matching is slower
  return code;
}

}  // namespace

Pattern Pattern::literal(std::string text) {
  Pattern pattern;
  pattern.source_ = std::move(text);
  return pattern;
}

Pattern Pattern::regex(const std::string& where, const std::string& expression) {
  auto result = std::make_shared<Compiled>();
  result->code = compiled(where, expression, with_unicode_classes(expression));
  Pattern pattern;
  pattern.source_ = expression;
  pattern.compiled_ = std::move(result);
  return pattern;
}

void Pattern::each_match(std::string_view text, const std::function<void(Range)>& found) const {
  if (!compiled_) {
    if (source_.empty()) return;
    for (size_t at = text.find(source_); at != text.npos; at = text.find(source_, at))
      found({at, at + source_.size()}), at += source_.size();
    return;
  }
  thread_local Matcher matcher;
  const size_t* match = pcre2_get_ovector_pointer(matcher.data.get());
  for (size_t start = 0; start <= text.size();) {
    int result =
        pcre2_match(compiled_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                    start, PCRE2_NO_UTF_CHECK, matcher.data.get(), matcher.context.get());
    if (result == PCRE2_ERROR_NOMATCH) return;
    require(result >= 0, "the regular expression '", source_, "' gave up on a text of ",
            text.size(), " bytes: ", pcre2_message(result));
    Range range{match[0], match[1]};
    // \K can set a match's start after its end.
    require(range.begin <= range.end, "the regular expression '", source_, "' uses \\K");
    found(range);
    if (range.end > range.begin)
      start = range.end;
    else
      start = range.end + (range.end < text.size() ? character_size(text[range.end]) : 1);
  }
}

}  // namespace redco::text

namespace redco {

std::vector<RegexMatch> find_matches(const std::string& expression, std::string_view text) {
  using namespace text;
  require(valid_utf8(text) == text, "the text is not UTF-8");
  auto code = compiled("", expression, expression);
  Owned<pcre2_match_data, pcre2_match_data_free> data(
      pcre2_match_data_create_from_pattern(code.get(), nullptr));
  Matcher limits;
  const size_t* match = pcre2_get_ovector_pointer(data.get());
  const uint32_t n_pairs = pcre2_get_ovector_count(data.get());
  std::vector<RegexMatch> found;
  uint32_t options = PCRE2_NO_UTF_CHECK;
  for (size_t start = 0; start <= text.size();) {
    int result = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                             start, options, data.get(), limits.context.get());
    if (result == PCRE2_ERROR_NOMATCH) break;
    require(result >= 0, "the regular expression '", expression, "' gave up on a text of ",
            text.size(), " bytes: ", pcre2_message(result));
    require(match[0] <= match[1], "the regular expression '", expression, "' uses \\K");
    RegexMatch& next = found.emplace_back(RegexMatch{{match[0], match[1]}, {}});
    for (uint32_t i = 1; i < n_pairs; ++i) {
      const bool is_set = int(i) < result && match[2 * i] != PCRE2_UNSET;
      next.groups.push_back(is_set ? std::optional(ByteRange(match[2 * i], match[2 * i + 1]))
                                   : std::nullopt);
    }
    // After an empty match Python looks for one at the same place that is not empty.
    options = PCRE2_NO_UTF_CHECK | (match[0] == match[1] ? PCRE2_NOTEMPTY_ATSTART : 0);
    start = match[1];
  }
  return found;
}

}  // namespace redco
