#include "jinja.h"

#include <redco/error.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <initializer_list>

namespace redco::text::jinja {

namespace {

constexpr int max_depth = 100;
constexpr int max_height = 500;  // of an expression: 1 + 1 + 1 is nested, too

bool is_blank(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

struct Lexeme {
  enum Kind { end, word, number, string, symbol } kind = end;
  std::string text;
};

// A tag of the template, or the text between two.
struct Part {
  enum Kind { text, output, statement } kind;
  std::string content;
  int line;
};

[[noreturn]] void fail_at(int line, const std::string& what) {
  fail("chat template, line ", line, ": ", what);
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
      Lexeme text{Lexeme::string, ""};
      for (; size < rest.size() && rest[size] != c; ++size) {
        if (rest[size] != '\\' || size + 1 == rest.size()) {
          text.text += rest[size];
          continue;
        }
        char escaped = rest[++size];
        text.text += escaped == 'n'   ? '\n'
                     : escaped == 't' ? '\t'
                     : escaped == 'r' ? '\r'
                                      : escaped;
      }
      if (size == rest.size()) fail_at(part.line, "a string does not end");
      result.push_back(std::move(text));
      rest.remove_prefix(size + 1);
      continue;
    }
    Lexeme::Kind kind = Lexeme::symbol;
    if (std::isdigit(static_cast<unsigned char>(c))) {
      kind = Lexeme::number;
      auto in_number = [&](size_t i) {
        return std::isdigit(static_cast<unsigned char>(rest[i])) ||
               (rest[i] == '.' && i + 1 < rest.size() &&
                std::isdigit(static_cast<unsigned char>(rest[i + 1])));
      };
      while (size < rest.size() && in_number(size)) ++size;
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

// Expressions by precedence, from the loosest operator to the tightest.
class ExpressionParser {
 public:
  explicit ExpressionParser(const Part& part) : lexemes_(lexemes(part)), line_(part.line) {}

  ExpressionPtr expression() {
    if (++depth_ > max_depth) fail_at(line_, "expressions are nested too deep");
    ExpressionPtr value = disjunction();
    if (take_word("if")) {
      ExpressionPtr condition = disjunction();
      ExpressionPtr other = take_word("else") ? expression() : nullptr;
      value =
          make(Expression::choice, "", std::move(value), std::move(condition), std::move(other));
    }
    --depth_;
    return value;
  }
  // Without "if": a loop's condition follows.
  ExpressionPtr disjunction() { return binary({"or"}, &ExpressionParser::conjunction); }

  bool take_word(std::string_view word) { return take(Lexeme::word, word); }
  bool take_symbol(std::string_view symbol) { return take(Lexeme::symbol, symbol); }
  std::string word() {
    if (peek().kind != Lexeme::word) unexpected("a name");
    return lexemes_[at_++].text;
  }
  void expect_word(std::string_view text) {
    if (!take_word(text)) unexpected("'" + std::string(text) + "'");
  }
  bool at_end() const { return at_ == lexemes_.size(); }
  void expect_end() {
    if (!at_end()) unexpected("the end of the tag");
  }
  [[noreturn]] void unexpected(const std::string& expected) {
    fail_at(line_,
            "expected " + expected + (at_end() ? ", got its end" : ", got '" + peek().text + "'"));
  }

 private:
  using Level = ExpressionPtr (ExpressionParser::*)();

  template <class... Parts>
  ExpressionPtr make(Expression::Kind kind, std::string text, Parts... parts) const {
    auto result = std::make_unique<Expression>();
    result->kind = kind;
    result->text = std::move(text);
    (add(*result, std::move(parts)), ...);
    return result;
  }
  void add(Expression& whole, ExpressionPtr part) const {
    if (part) whole.height = std::max(whole.height, part->height + 1);
    if (whole.height > max_height) fail_at(line_, "an expression has too many operations");
    whole.parts.push_back(std::move(part));
  }

  const Lexeme& peek(size_t ahead = 0) const {
    static const Lexeme none;
    return at_ + ahead < lexemes_.size() ? lexemes_[at_ + ahead] : none;
  }
  bool take(Lexeme::Kind kind, std::string_view text) {
    if (peek().kind != kind || peek().text != text) return false;
    ++at_;
    return true;
  }
  void expect_symbol(std::string_view symbol) {
    if (!take_symbol(symbol)) unexpected("'" + std::string(symbol) + "'");
  }

  // Operators of one level, from left to right.
  ExpressionPtr binary(std::initializer_list<std::string_view> operators, Level tighter) {
    ExpressionPtr left = (this->*tighter)();
    for (;;) {
      auto found = std::find_if(operators.begin(), operators.end(), [&](std::string_view text) {
        return (peek().kind == Lexeme::symbol || peek().kind == Lexeme::word) &&
               peek().text == text;
      });
      if (found == operators.end()) return left;
      ++at_;
      left = make(Expression::binary, std::string(*found), std::move(left), (this->*tighter)());
    }
  }

  ExpressionPtr conjunction() { return binary({"and"}, &ExpressionParser::negation); }
  ExpressionPtr negation() {
    if (!take_word("not")) return comparison();
    if (++depth_ > max_depth) fail_at(line_, "expressions are nested too deep");
    ExpressionPtr negated = make(Expression::unary, "not", negation());
    --depth_;
    return negated;
  }
  ExpressionPtr comparison() {
    ExpressionPtr left = sum();
    for (;;) {
      bool not_in = peek().text == "not" && peek().kind == Lexeme::word && peek(1).text == "in";
      if (not_in) {
        at_ += 2;
        left =
            make(Expression::unary, "not", make(Expression::binary, "in", std::move(left), sum()));
        continue;
      }
      std::string text = peek().text;
      bool is_operator =
          (peek().kind == Lexeme::symbol && (text == "==" || text == "!=" || text == "<" ||
                                             text == ">" || text == "<=" || text == ">=")) ||
          (peek().kind == Lexeme::word && text == "in");
      if (!is_operator) return left;
      ++at_;
      left = make(Expression::binary, text, std::move(left), sum());
    }
  }
  ExpressionPtr sum() { return binary({"+", "-"}, &ExpressionParser::joined); }
  ExpressionPtr joined() { return binary({"~"}, &ExpressionParser::product); }
  ExpressionPtr product() { return binary({"*", "/", "//", "%"}, &ExpressionParser::sign); }
  ExpressionPtr sign() {
    if (!take_symbol("-")) return filtered();
    return make(Expression::unary, "-", filtered());
  }

  ExpressionPtr filtered() {
    ExpressionPtr value = postfix(primary());
    for (;;) {
      if (take_symbol("|")) {
        value = make(Expression::filter, word(), std::move(value));
        if (take_symbol("(")) arguments(*value);
      } else if (take_word("is")) {
        bool negated = take_word("not");
        value = make(Expression::test, word(), std::move(value));
        if (take_symbol("(")) arguments(*value);
        if (negated) value = make(Expression::unary, "not", std::move(value));
      } else {
        return value;
      }
    }
  }

  void arguments(Expression& call) {
    while (!take_symbol(")")) {
      bool named =
          peek().kind == Lexeme::word && peek(1).kind == Lexeme::symbol && peek(1).text == "=";
      if (named) {
        call.names.push_back(word());
        ++at_;
      } else if (!call.names.empty()) {
        unexpected("a named argument");
      }
      add(call, expression());
      if (!take_symbol(",") && peek().text != ")") unexpected("',' or ')'");
    }
  }

  ExpressionPtr postfix(ExpressionPtr value) {
    for (;;) {
      if (take_symbol(".")) {
        value = make(Expression::attribute, word(), std::move(value));
      } else if (take_symbol("(")) {
        value = make(Expression::call, "", std::move(value));
        arguments(*value);
      } else if (take_symbol("[")) {
        value = subscript(std::move(value));
      } else {
        return value;
      }
    }
  }

  ExpressionPtr subscript(ExpressionPtr value) {
    ExpressionPtr bounds[3];
    int n_colons = 0;
    while (!take_symbol("]")) {
      if (take_symbol(":")) {
        if (++n_colons > 2) unexpected("']'");
      } else if (bounds[n_colons]) {
        unexpected("':' or ']'");
      } else {
        bounds[n_colons] = expression();
      }
    }
    if (n_colons > 0)
      return make(Expression::slice, "", std::move(value), std::move(bounds[0]),
                  std::move(bounds[1]), std::move(bounds[2]));
    if (!bounds[0]) unexpected("an index");
    return make(Expression::subscript, "", std::move(value), std::move(bounds[0]));
  }

  ExpressionPtr literal(Value value) {
    ExpressionPtr result = make(Expression::literal, "");
    result->value = std::move(value);
    return result;
  }

  ExpressionPtr primary() {
    Lexeme lexeme = peek();
    ++at_;
    if (lexeme.kind == Lexeme::string) {
      while (peek().kind == Lexeme::string) lexeme.text += lexemes_[at_++].text;
      return literal({lexeme.text});
    }
    if (lexeme.kind == Lexeme::number) return number(lexeme.text);
    if (lexeme.kind == Lexeme::word) {
      const std::string& text = lexeme.text;
      if (text == "true" || text == "True") return literal({true});
      if (text == "false" || text == "False") return literal({false});
      if (text == "none" || text == "None") return literal({Value::None()});
      return make(Expression::name, text);
    }
    if (lexeme.text == "(") return parenthesis(")", false);
    if (lexeme.text == "[") return parenthesis("]", true);
    if (lexeme.text == "{") return dictionary();
    --at_;
    unexpected("a value");
  }

  ExpressionPtr number(const std::string& text) {
    const char* end = text.data() + text.size();
    int64_t integer = 0;
    auto parsed = std::from_chars(text.data(), end, integer);
    if (parsed.ec == std::errc() && parsed.ptr == end) return literal({integer});
    double real = 0;
    auto parsed_real = std::from_chars(text.data(), end, real);
    if (parsed_real.ec != std::errc() || parsed_real.ptr != end)
      fail_at(line_, "'" + text + "' is no number");
    return literal({real});
  }

  // A list, a tuple, or one expression in parentheses.
  ExpressionPtr parenthesis(std::string_view close, bool is_list) {
    ExpressionPtr result = make(Expression::list, "");
    while (!take_symbol(close)) {
      add(*result, expression());
      if (take_symbol(","))
        is_list = true;
      else if (peek().text != close)
        unexpected("',' or '" + std::string(close) + "'");
    }
    if (!is_list && result->parts.size() == 1) return std::move(result->parts[0]);
    return result;
  }

  ExpressionPtr dictionary() {
    ExpressionPtr result = make(Expression::dict, "");
    while (!take_symbol("}")) {
      add(*result, expression());
      expect_symbol(":");
      add(*result, expression());
      if (!take_symbol(",") && peek().text != "}") unexpected("',' or '}'");
    }
    return result;
  }

  std::vector<Lexeme> lexemes_;
  int line_;
  size_t at_ = 0;
  int depth_ = 0;
};

// Where the tag that begins at `begin` ends: strings in it may hold what looks like its end.
size_t tag_end(const std::string& source, size_t begin, std::string_view close, int line) {
  char quote = '\0';
  bool is_comment = close == "#}";
  for (size_t i = begin; i < source.size(); ++i) {
    if (!is_comment && quote != '\0') {
      if (source[i] == '\\')
        ++i;
      else if (source[i] == quote)
        quote = '\0';
    } else if (source.compare(i, close.size(), close) == 0) {
      return i;
    } else if (!is_comment && (source[i] == '"' || source[i] == '\'')) {
      quote = source[i];
    }
  }
  fail_at(line, "a tag does not end");
}

std::vector<Part> split(std::string source) {
  if (source.ends_with('\n')) source.pop_back();
  std::vector<Part> parts;
  size_t done = 0, counted = 0;
  int line = 1;
  auto add_text = [&](std::string text) {
    if (!text.empty()) parts.push_back({Part::text, std::move(text), line});
  };
  for (size_t at = 0; (at = source.find('{', at)) != source.npos;) {
    char kind = at + 1 < source.size() ? source[at + 1] : '\0';
    if (kind != '{' && kind != '%' && kind != '#') {
      ++at;
      continue;
    }
    line += static_cast<int>(std::count(source.begin() + static_cast<ptrdiff_t>(counted),
                                        source.begin() + static_cast<ptrdiff_t>(at), '\n'));
    counted = at;
    std::string close = kind == '{' ? "}}" : std::string(1, kind) + "}";
    size_t begin = at + 2;
    bool strips_before = begin < source.size() && source[begin] == '-';
    bool keeps_before = begin < source.size() && source[begin] == '+';
    if (strips_before || keeps_before) ++begin;
    size_t end = tag_end(source, begin, close, line);
    std::string text = source.substr(done, at - done);
    if (strips_before) {
      while (!text.empty() && is_blank(text.back())) text.pop_back();
    } else if (kind != '{' && !keeps_before) {
      // The blanks between the start of a line and a tag are no output.
      size_t start = at;
      while (start > 0 && (source[start - 1] == ' ' || source[start - 1] == '\t')) --start;
      if (start == 0 || source[start - 1] == '\n')
        while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.pop_back();
    }
    add_text(std::move(text));
    done = end + 2;
    bool strips_after = end > begin && source[end - 1] == '-';
    if (kind != '#')
      parts.push_back({kind == '{' ? Part::output : Part::statement,
                       source.substr(begin, end - begin - strips_after), line});
    if (strips_after)
      while (done < source.size() && is_blank(source[done])) ++done;
    else if (kind != '{' && done < source.size() && source[done] == '\n')
      ++done;
    at = done;
  }
  add_text(source.substr(done));
  return parts;
}

class TemplateParser {
 public:
  explicit TemplateParser(const std::string& source) : parts_(split(source)) {}

  std::vector<Node> all() {
    std::string ended_by;
    std::vector<Node> nodes = until({}, ended_by);
    return nodes;
  }

 private:
  // The nodes up to the first of these words, which begins the tag that `closing_` then is.
  std::vector<Node> until(std::initializer_list<std::string_view> closing, std::string& ended_by) {
    if (++depth_ > max_depth) fail_at(parts_[at_ - 1].line, "blocks are nested too deep");
    std::vector<Node> nodes;
    while (at_ < parts_.size()) {
      const Part& part = parts_[at_++];
      Node node;
      node.line = part.line;
      if (part.kind == Part::text) {
        node.content = part.content;
      } else if (part.kind == Part::output) {
        node.kind = Node::output;
        ExpressionParser parser(part);
        node.expression = parser.expression();
        parser.expect_end();
      } else {
        ExpressionParser parser(part);
        std::string word = parser.word();
        if (std::find(closing.begin(), closing.end(), word) != closing.end()) {
          ended_by = word;
          closing_ = at_ - 1;
          --depth_;
          return nodes;
        }
        // Marks what a model says, for training; it changes no text.
        if (word == "generation" || word == "endgeneration") continue;
        statement(word, parser, node);
      }
      nodes.push_back(std::move(node));
    }
    if (closing.size() > 0)
      fail_at(parts_.back().line,
              "the template ends before '" + std::string(*(closing.end() - 1)) + "'");
    --depth_;
    return nodes;
  }

  void statement(const std::string& word, ExpressionParser& parser, Node& node) {
    if (word == "for") {
      loop(parser, node);
    } else if (word == "if") {
      branch(parser, node);
    } else if (word == "set") {
      set(parser, node);
    } else if (word == "break" || word == "continue") {
      node.kind = word == "break" ? Node::stop : Node::next;
      parser.expect_end();
    } else {
      fail_at(node.line, "the statement '" + word +
                             "' is not supported; supported are for, if, set, break, continue");
    }
  }

  void loop(ExpressionParser& parser, Node& node) {
    node.kind = Node::loop;
    do node.names.push_back(parser.word());
    while (parser.take_symbol(","));
    parser.expect_word("in");
    node.expression = parser.disjunction();
    if (parser.take_word("if")) node.condition = parser.disjunction();
    parser.expect_end();
    std::string ended_by;
    node.body = until({"else", "endfor"}, ended_by);
    if (ended_by == "else") node.other = until({"endfor"}, ended_by);
  }

  void branch(ExpressionParser& parser, Node& node) {
    node.kind = Node::branch;
    node.condition = parser.expression();
    parser.expect_end();
    std::string ended_by;
    node.body = until({"elif", "else", "endif"}, ended_by);
    if (ended_by == "else") node.other = until({"endif"}, ended_by);
    if (ended_by != "elif") return;
    Node inner;
    inner.line = parts_[closing_].line;
    ExpressionParser next(parts_[closing_]);
    next.word();
    if (++depth_ > max_depth) fail_at(inner.line, "blocks are nested too deep");
    branch(next, inner);
    --depth_;
    node.other.push_back(std::move(inner));
  }

  void set(ExpressionParser& parser, Node& node) {
    node.kind = Node::set;
    node.names.push_back(parser.word());
    if (parser.take_symbol(".")) node.names.push_back(parser.word());
    if (parser.take_symbol("=")) {
      node.expression = parser.expression();
    } else {
      node.kind = Node::set_body;
      std::string ended_by;
      node.body = until({"endset"}, ended_by);
    }
    parser.expect_end();
  }

  std::vector<Part> parts_;
  size_t at_ = 0;
  size_t closing_ = 0;
  int depth_ = 0;
};

}  // namespace

std::vector<Node> parse(const std::string& source) { return TemplateParser(source).all(); }

}  // namespace redco::text::jinja
