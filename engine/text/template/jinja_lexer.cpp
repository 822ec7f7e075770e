// Splits Jinja templates into tags and words.

#include "jinja_lexer.h"

#include "../utf8.h"

#include <redco/error.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <string_view>

namespace redco::text::jinja {

namespace {

bool is_blank(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || (c & 0x80) != 0;
}

// Reads string literals with Python's escapes; unknown escapes are kept unchanged.
class StringReader {
 public:
  StringReader(std::string_view rest, int line) : rest_(rest), line_(line) {}

  // Reads the string at the start of `rest`; `size` becomes its size in bytes, quotes included.
  std::string read(size_t& size) {
    char quote = rest_[0];
    size_t i = 1;
    while (i < rest_.size() && rest_[i] != quote) {
      if (rest_[i] != '\\' || i + 1 == rest_.size())
        text_ += rest_[i++];
      else
        i = escape(i + 1);
    }
    if (i == rest_.size()) fail_at(line_, "a string does not end");
    size = i + 1;
    return std::move(text_);
  }

 private:
  // Reads the escape at `i`, after its backslash; returns the position after it.
  size_t escape(size_t i) {
    constexpr std::string_view letters = "ntrabfv\\'\"", meanings = "\n\t\r\a\b\f\v\\'\"";
    char c = rest_[i];
    if (size_t at = letters.find(c); at != letters.npos) {
      text_ += meanings[at];
      return i + 1;
    }
    if (c == '\n') return i + 1;
    if (c >= '0' && c <= '7') return code(i, 3, 8);
    if (c == 'x') return code(i + 1, 2, 16, true);
    if (c == 'u') return code(i + 1, 4, 16, true);
    if (c == 'U') return code(i + 1, 8, 16, true);
    text_ += '\\';
    return i;
  }

  size_t code(size_t begin, size_t most, int base, bool needs_all = false) {
    uint32_t value = 0;
    const char* first = rest_.data() + begin;
    const char* last = rest_.data() + std::min(begin + most, rest_.size());
    auto parsed = std::from_chars(first, last, value, base);
    auto size = size_t(parsed.ptr - first);
    bool is_character = value < 0xD800 || (value > 0xDFFF && value < 0x110000);
    if (parsed.ec != std::errc() || (needs_all && size != most) || !is_character)
      fail_at(line_, "an escape in a string stands for no character");
    append_code_point(text_, value);
    return begin + size;
  }

  std::string_view rest_;
  int line_;
  std::string text_;
};

size_t number_size(std::string_view rest, bool is_index) {
  size_t size = 0;
  auto digits = [&] {
    while (size < rest.size() && (is_digit(rest[size]) || rest[size] == '_')) ++size;
  };
  digits();
  if (is_index) return size;
  if (size + 1 < rest.size() && rest[size] == '.' && is_digit(rest[size + 1])) {
    ++size;
    digits();
  }
  if (size < rest.size() && (rest[size] == 'e' || rest[size] == 'E')) {
    size_t exponent = size + 1;
    if (exponent < rest.size() && (rest[exponent] == '+' || rest[exponent] == '-')) ++exponent;
    if (exponent < rest.size() && is_digit(rest[exponent])) {
      size = exponent;
      digits();
    }
  }
  return size;
}

// Finds the end of a tag: strings and brackets in it may contain the same characters.
class TagEnd {
 public:
  TagEnd(const std::string& source, size_t begin, std::string_view close)
      : source_(source), begin_(begin), close_(close) {}

  // Returns npos if the tag does not end.
  size_t find() const {
    if (close_ == "#}") return source_.find(close_, begin_);
    int depth = 0;
    for (size_t i = begin_; i < source_.size(); ++i) {
      char c = source_[i];
      if (depth == 0 && source_.compare(i, close_.size(), close_) == 0) return i;
      if (c == '"' || c == '\'')
        i = string_end(i);
      else if (c == '(' || c == '[' || c == '{')
        ++depth;
      else if ((c == ')' || c == ']' || c == '}') && depth > 0)
        --depth;
    }
    return source_.npos;
  }

 private:
  size_t string_end(size_t begin) const {
    size_t i = begin + 1;
    for (; i < source_.size() && source_[i] != source_[begin]; ++i)
      if (source_[i] == '\\') ++i;
    return i;
  }

  const std::string& source_;
  size_t begin_;
  std::string_view close_;
};

std::string with_plain_newlines(const std::string& source) {
  std::string result;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r')
      result += source[i];
    else if (i + 1 == source.size() || source[i + 1] != '\n')
      result += '\n';
  }
  return result;
}

class Splitter {
 public:
  Splitter(const std::string& source, const Dialect& dialect)
      : source_(with_plain_newlines(source)), trims_blocks_(dialect.trims_blocks) {
    if (source_.ends_with('\n') && !dialect.keeps_last_newline) source_.pop_back();
  }

  std::vector<Part> split() {
    for (size_t at = 0; (at = source_.find('{', at)) != source_.npos;) {
      char kind = at + 1 < source_.size() ? source_[at + 1] : '\0';
      at = kind == '{' || kind == '%' || kind == '#' ? tag(at, kind) : at + 1;
    }
    add_text(source_.substr(done_));
    return std::move(parts_);
  }

 private:
  // Adds the text before the tag at `at`, and the tag; returns the position after it.
  size_t tag(size_t at, char kind) {
    count_lines(at);
    std::string close = kind == '{' ? "}}" : std::string(1, kind) + "}";
    size_t begin = at + 2;
    char mark = begin < source_.size() ? source_[begin] : '\0';
    if (mark == '-' || mark == '+') ++begin;
    size_t end = TagEnd(source_, begin, close).find();
    if (end == source_.npos) fail_at(line_, "a tag does not end");
    add_text(before(at, kind, mark));
    done_ = end + 2;
    char last = end > begin ? source_[end - 1] : '\0';
    bool is_marked = last == '-' || (last == '+' && kind != '{');
    std::string content = source_.substr(begin, end - begin - is_marked);
    size_t first = content.find_first_not_of(" \t\n");
    bool is_raw = kind == '%' && first != content.npos &&
                  content.substr(first, content.find_last_not_of(" \t\n") + 1 - first) == "raw";
    if (last == '-')
      while (done_ < source_.size() && is_blank(source_[done_])) ++done_;
    else if (trims_blocks_ && last != '+' && kind != '{' && !is_raw && done_ < source_.size() &&
             source_[done_] == '\n')
      ++done_;
    if (is_raw) return raw();
    if (kind != '#')
      parts_.push_back({kind == '{' ? Part::output : Part::statement, std::move(content), line_});
    return done_;
  }

  // The text before a tag, without stripped blanks.
  std::string before(size_t at, char kind, char mark) const {
    std::string text = source_.substr(done_, at - done_);
    if (mark == '-') {
      while (!text.empty() && is_blank(text.back())) text.pop_back();
    } else if (trims_blocks_ && kind != '{' && mark != '+') {
      // Strip blanks between the start of a line and a statement.
      size_t start = at;
      while (start > 0 && source_[start - 1] != '\n' && is_blank(source_[start - 1])) --start;
      if (start == 0 || source_[start - 1] == '\n')
        while (!text.empty() && text.back() != '\n' && is_blank(text.back())) text.pop_back();
    }
    return text;
  }

  // Reads the text up to endraw unchanged.
  size_t raw() {
    for (size_t at = done_; (at = source_.find("{%", at)) != source_.npos; at += 2) {
      size_t begin = at + 2;
      char mark = begin < source_.size() ? source_[begin] : '\0';
      if (mark == '-' || mark == '+') ++begin;
      while (begin < source_.size() && is_blank(source_[begin])) ++begin;
      if (source_.compare(begin, 6, "endraw") != 0) continue;
      size_t end = source_.find("%}", begin);
      if (end == source_.npos) break;
      add_text(before(at, '%', mark));
      done_ = end + 2;
      if (source_[end - 1] == '-')
        while (done_ < source_.size() && is_blank(source_[done_])) ++done_;
      else if (trims_blocks_ && source_[end - 1] != '+' && done_ < source_.size() &&
               source_[done_] == '\n')
        ++done_;
      return done_;
    }
    fail_at(line_, "the template ends before 'endraw'");
  }

  void add_text(std::string text) {
    if (!text.empty()) parts_.push_back({Part::text, std::move(text), line_});
  }

  void count_lines(size_t at) {
    line_ += int(
        std::count(source_.begin() + ptrdiff_t(counted_), source_.begin() + ptrdiff_t(at), '\n'));
    counted_ = at;
  }

  std::string source_;
  bool trims_blocks_;
  std::vector<Part> parts_;
  size_t done_ = 0, counted_ = 0;
  int line_ = 1;
};

}  // namespace

void fail_at(int line, const std::string& what) { fail("line ", line, ": ", what); }

std::vector<Part> split(const std::string& source, const Dialect& dialect) {
  return Splitter(source, dialect).split();
}

std::vector<Lexeme> lexemes(const Part& part) {
  constexpr std::string_view doubles[] = {"==", "!=", "<=", ">=", "//", "**"};
  std::vector<Lexeme> result;
  std::string_view rest = part.content;
  while (!rest.empty()) {
    char c = rest[0];
    size_t size = 1;
    if (is_blank(c)) {
      rest.remove_prefix(1);
      continue;
    }
    if (c == '"' || c == '\'') {
      std::string text = StringReader(rest, part.line).read(size);
      result.push_back({Lexeme::string, std::move(text)});
      rest.remove_prefix(size);
      continue;
    }
    Lexeme::Kind kind = Lexeme::symbol;
    if (is_digit(c)) {
      kind = Lexeme::number;
      // In `a.0.1` both are indices.
      size = number_size(rest, !result.empty() && result.back().text == "." &&
                                   result.back().kind == Lexeme::symbol);
    } else if (is_word(c)) {
      kind = Lexeme::word;
      while (size < rest.size() && is_word(rest[size])) ++size;
    } else {
      for (std::string_view two : doubles)
        if (rest.starts_with(two)) size = 2;
    }
    result.push_back({kind, std::string(rest.substr(0, size))});
    rest.remove_prefix(size);
  }
  return result;
}

}  // namespace redco::text::jinja
