#pragma once

#include <string>
#include <vector>

namespace redco::text::jinja {

/// A tag of the template, or the text between two.
struct Part {
  enum Kind { text, output, statement } kind;
  std::string content;
  int line;
};

struct Lexeme {
  enum Kind { end, word, number, string, symbol } kind = end;
  std::string text;
};

[[noreturn]] void fail_at(int line, const std::string& what);

/// The parts of a template, with trim_blocks and lstrip_blocks.
std::vector<Part> split(const std::string& source);

/// The words of a tag.
std::vector<Lexeme> lexemes(const Part& part);

}  // namespace redco::text::jinja
