#pragma once

#include "jinja.h"

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

/// Throws Error, beginning with the line.
[[noreturn]] void fail_at(int line, const std::string& what);

/// The parts of a template.
std::vector<Part> split(const std::string& source, const Dialect& dialect);

/// The words of a tag.
std::vector<Lexeme> lexemes(const Part& part);

}  // namespace redco::text::jinja
