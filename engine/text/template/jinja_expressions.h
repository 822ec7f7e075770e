#pragma once

#include "jinja.h"
#include "jinja_lexer.h"

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace redco::text::jinja {

/// Parses the words of one tag: expressions by precedence, from the loosest operator to the
/// tightest.
class ExpressionParser {
 public:
  static constexpr int max_depth = 100;

  explicit ExpressionParser(const Part& part) : lexemes_(lexemes(part)), line_(part.line) {}

  ExpressionPtr expression();
  /// An expression, or a tuple without its parentheses.
  ExpressionPtr tuple();
  /// Without "if" and "else": a loop's condition follows.
  ExpressionPtr disjunction() { return binary({"or"}, &ExpressionParser::conjunction); }
  /// The filters that follow `value`.
  ExpressionPtr filters(ExpressionPtr value);
  ExpressionPtr filter(ExpressionPtr value);

  bool take_word(std::string_view word) { return take(Lexeme::word, word); }
  bool take_symbol(std::string_view symbol) { return take(Lexeme::symbol, symbol); }
  bool sees_symbol(std::string_view symbol) const {
    return peek().kind == Lexeme::symbol && peek().text == symbol;
  }
  bool at_end() const { return at_ == lexemes_.size(); }
  std::string word();
  std::string dotted_word();
  void expect_word(std::string_view text);
  void expect_symbol(std::string_view symbol);
  void expect_end();
  [[noreturn]] void unexpected(const std::string& expected) const;

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
  void add(Expression& whole, ExpressionPtr part) const;
  ExpressionPtr literal(Value value) const;

  const Lexeme& peek(size_t ahead = 0) const;
  bool take(Lexeme::Kind kind, std::string_view text);
  bool sees_one_of(Lexeme::Kind kind, std::initializer_list<std::string_view> texts) const;

  ExpressionPtr binary(std::initializer_list<std::string_view> operators, Level tighter);
  ExpressionPtr conjunction() { return binary({"and"}, &ExpressionParser::negation); }
  ExpressionPtr negation();
  ExpressionPtr comparison();
  std::string comparison_operator();
  ExpressionPtr sum() { return binary({"+", "-"}, &ExpressionParser::joined); }
  ExpressionPtr joined() { return binary({"~"}, &ExpressionParser::product); }
  ExpressionPtr product() { return binary({"*", "/", "//", "%"}, &ExpressionParser::power); }
  ExpressionPtr power() { return binary({"**"}, &ExpressionParser::signed_and_filtered); }
  ExpressionPtr signed_and_filtered();
  ExpressionPtr sign();
  ExpressionPtr test(ExpressionPtr value);
  void arguments(Expression& call);
  ExpressionPtr postfix(ExpressionPtr value);
  ExpressionPtr subscript(ExpressionPtr value);
  ExpressionPtr primary();
  ExpressionPtr number(const std::string& text) const;
  ExpressionPtr parenthesis();
  ExpressionPtr list();
  ExpressionPtr dictionary();

  std::vector<Lexeme> lexemes_;
  int line_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace redco::text::jinja
