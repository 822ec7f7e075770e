// Parses expressions of Jinja.

#include "jinja_expressions.h"

#include <algorithm>
#include <charconv>

namespace redco::text::jinja {

namespace {

constexpr int max_height = 300;  // of an expression; 1 + 1 + 1 is nested too

}  // namespace

ExpressionPtr ExpressionParser::expression() {
  if (++depth_ > max_depth) fail_at(line_, "expressions are nested too deep");
  ExpressionPtr value = disjunction();
  while (take_word("if")) {
    ExpressionPtr condition = disjunction();
    ExpressionPtr other = take_word("else") ? expression() : nullptr;
    value = make(Expression::choice, "", std::move(value), std::move(condition), std::move(other));
  }
  --depth_;
  return value;
}

ExpressionPtr ExpressionParser::tuple() {
  ExpressionPtr first = expression();
  if (!sees_symbol(",")) return first;
  ExpressionPtr result = make(Expression::tuple, "", std::move(first));
  while (take_symbol(",") && !at_end() && !sees_symbol(")")) add(*result, expression());
  return result;
}

std::string ExpressionParser::word() {
  if (peek().kind != Lexeme::word) unexpected("a name");
  return lexemes_[at_++].text;
}

void ExpressionParser::expect_word(std::string_view text) {
  if (!take_word(text)) unexpected("'" + std::string(text) + "'");
}

void ExpressionParser::expect_symbol(std::string_view symbol) {
  if (!take_symbol(symbol)) unexpected("'" + std::string(symbol) + "'");
}

void ExpressionParser::expect_end() {
  if (!at_end()) unexpected("the end of the tag");
}

void ExpressionParser::unexpected(const std::string& expected) const {
  fail_at(line_,
          "expected " + expected + (at_end() ? ", got its end" : ", got '" + peek().text + "'"));
}

void ExpressionParser::add(Expression& whole, ExpressionPtr part) const {
  if (part) whole.height = std::max(whole.height, part->height + 1);
  if (whole.height > max_height) fail_at(line_, "an expression has too many operations");
  whole.parts.push_back(std::move(part));
}

ExpressionPtr ExpressionParser::literal(Value value) const {
  ExpressionPtr result = make(Expression::literal, "");
  result->value = std::move(value);
  return result;
}

const Lexeme& ExpressionParser::peek(size_t ahead) const {
  static const Lexeme none;
  return at_ + ahead < lexemes_.size() ? lexemes_[at_ + ahead] : none;
}

bool ExpressionParser::take(Lexeme::Kind kind, std::string_view text) {
  if (peek().kind != kind || peek().text != text) return false;
  ++at_;
  return true;
}

bool ExpressionParser::sees_one_of(Lexeme::Kind kind,
                                   std::initializer_list<std::string_view> texts) const {
  return peek().kind == kind && std::find(texts.begin(), texts.end(), peek().text) != texts.end();
}

// Operators of one precedence, left to right.
ExpressionPtr ExpressionParser::binary(std::initializer_list<std::string_view> operators,
                                       Level tighter) {
  ExpressionPtr left = (this->*tighter)();
  while (sees_one_of(Lexeme::symbol, operators) || sees_one_of(Lexeme::word, operators)) {
    std::string text = lexemes_[at_++].text;
    left = make(Expression::binary, std::move(text), std::move(left), (this->*tighter)());
  }
  return left;
}

ExpressionPtr ExpressionParser::negation() {
  if (!take_word("not")) return comparison();
  if (++depth_ > max_depth) fail_at(line_, "expressions are nested too deep");
  ExpressionPtr negated = make(Expression::unary, "not", negation());
  --depth_;
  return negated;
}

// Consumes the next operator; "" if there is none.
std::string ExpressionParser::comparison_operator() {
  if (take_word("in")) return "in";
  if (peek().kind == Lexeme::word && peek().text == "not" && peek(1).text == "in") {
    at_ += 2;
    return "not in";
  }
  if (!sees_one_of(Lexeme::symbol, {"==", "!=", "<", ">", "<=", ">="})) return "";
  return lexemes_[at_++].text;
}

ExpressionPtr ExpressionParser::comparison() {
  ExpressionPtr first = sum();
  std::string text = comparison_operator();
  if (text.empty()) return first;
  ExpressionPtr result = make(Expression::comparison, "", std::move(first));
  for (; !text.empty(); text = comparison_operator()) {
    result->names.push_back(std::move(text));
    add(*result, sum());
  }
  return result;
}

ExpressionPtr ExpressionParser::signed_and_filtered() { return filters(sign()); }

ExpressionPtr ExpressionParser::sign() {
  if (!sees_one_of(Lexeme::symbol, {"-", "+"})) return postfix(primary());
  std::string text = lexemes_[at_++].text;
  if (++depth_ > max_depth) fail_at(line_, "expressions are nested too deep");
  ExpressionPtr result = make(Expression::unary, std::move(text), sign());
  --depth_;
  return result;
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr value) {
  for (;;) {
    if (take_symbol("|")) {
      value = filter(std::move(value));
    } else if (take_word("is")) {
      value = test(std::move(value));
    } else if (take_symbol("(")) {
      value = make(Expression::call, "", std::move(value));
      arguments(*value);
    } else {
      return value;
    }
  }
}

// The names of filters and tests may have dots. No such name is known here.
std::string ExpressionParser::dotted_word() {
  std::string name = word();
  while (take_symbol(".")) name += "." + word();
  return name;
}

ExpressionPtr ExpressionParser::filter(ExpressionPtr value) {
  ExpressionPtr result = make(Expression::filter, dotted_word(), std::move(value));
  if (take_symbol("(")) arguments(*result);
  return result;
}

ExpressionPtr ExpressionParser::test(ExpressionPtr value) {
  bool negated = take_word("not");
  ExpressionPtr result = make(Expression::test, dotted_word(), std::move(value));
  bool is_operand = peek().kind == Lexeme::string || peek().kind == Lexeme::number ||
                    sees_one_of(Lexeme::symbol, {"[", "{"}) ||
                    (peek().kind == Lexeme::word &&
                     !sees_one_of(Lexeme::word, {"else", "or", "and", "if", "in", "not"}));
  if (take_symbol("(")) {
    arguments(*result);
  } else if (is_operand) {
    if (peek().text == "is") fail_at(line_, "a test of a test: use parentheses");
    add(*result, postfix(primary()));
  }
  if (negated) result = make(Expression::unary, "not", std::move(result));
  return result;
}

void ExpressionParser::arguments(Expression& call) {
  while (!take_symbol(")")) {
    bool named =
        peek().kind == Lexeme::word && peek(1).kind == Lexeme::symbol && peek(1).text == "=";
    if (named) {
      call.names.push_back(word());
      ++at_;
    } else if (sees_one_of(Lexeme::symbol, {"*", "**"})) {
      call.names.push_back(lexemes_[at_++].text);
    } else if (!call.names.empty()) {
      unexpected("a named argument");
    }
    add(call, expression());
    if (!take_symbol(",") && !sees_symbol(")")) unexpected("',' or ')'");
  }
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr value) {
  for (;;) {
    if (take_symbol(".")) {
      if (peek().kind == Lexeme::number)
        value = make(Expression::subscript, "", std::move(value), number(lexemes_[at_++].text));
      else
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

ExpressionPtr ExpressionParser::subscript(ExpressionPtr value) {
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
    return make(Expression::slice, "", std::move(value), std::move(bounds[0]), std::move(bounds[1]),
                std::move(bounds[2]));
  if (!bounds[0]) unexpected("an index");
  return make(Expression::subscript, "", std::move(value), std::move(bounds[0]));
}

ExpressionPtr ExpressionParser::primary() {
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
  if (lexeme.text == "(") return parenthesis();
  if (lexeme.text == "[") return list();
  if (lexeme.text == "{") return dictionary();
  --at_;
  unexpected("a value");
}

ExpressionPtr ExpressionParser::number(const std::string& written) const {
  std::string text = written;
  std::erase(text, '_');
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

ExpressionPtr ExpressionParser::parenthesis() {
  if (take_symbol(")")) return make(Expression::tuple, "");
  ExpressionPtr inner = tuple();
  if (!take_symbol(")")) unexpected("',' or ')'");
  return inner;
}

ExpressionPtr ExpressionParser::list() {
  ExpressionPtr result = make(Expression::list, "");
  while (!take_symbol("]")) {
    add(*result, expression());
    if (!take_symbol(",") && !sees_symbol("]")) unexpected("',' or ']'");
  }
  return result;
}

ExpressionPtr ExpressionParser::dictionary() {
  ExpressionPtr result = make(Expression::dict, "");
  while (!take_symbol("}")) {
    add(*result, expression());
    expect_symbol(":");
    add(*result, expression());
    if (!take_symbol(",") && !sees_symbol("}")) unexpected("',' or '}'");
  }
  return result;
}

}  // namespace redco::text::jinja
