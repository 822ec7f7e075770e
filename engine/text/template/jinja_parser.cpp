// Parses Jinja templates into nodes.

#include "jinja.h"
#include "jinja_expressions.h"
#include "jinja_lexer.h"

#include <redco/error.h>

#include <algorithm>
#include <initializer_list>
#include <map>

namespace redco::text::jinja {

namespace {

constexpr int max_depth = ExpressionParser::max_depth;

ExpressionPtr body_expression() {
  auto result = std::make_unique<Expression>();
  result->kind = Expression::name;
  result->text = body_variable;
  return result;
}

class TemplateParser {
 public:
  TemplateParser(const std::string& source, const Dialect& dialect)
      : parts_(split(source, dialect)) {}

  std::vector<Node> all() {
    std::string ended_by;
    std::vector<Node> nodes = until({}, ended_by);
    return nodes;
  }

 private:
  using Reader = void (TemplateParser::*)(ExpressionParser&, Node&);

  static const std::map<std::string, Reader>& readers() {
    static const std::map<std::string, Reader> table = {
        {"break", &TemplateParser::stop},    {"call", &TemplateParser::call},
        {"continue", &TemplateParser::next}, {"filter", &TemplateParser::filtered},
        {"for", &TemplateParser::loop},      {"generation", &TemplateParser::generation},
        {"if", &TemplateParser::branch},     {"macro", &TemplateParser::macro},
        {"set", &TemplateParser::set},       {"with", &TemplateParser::with}};
    return table;
  }

  // Parses nodes up to the first of these words, which begins the tag in `closing_`.
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
        node.expression = parser.tuple();
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

  std::vector<Node> body(std::string_view end) {
    std::string ended_by;
    return until({end}, ended_by);
  }

  void statement(const std::string& word, ExpressionParser& parser, Node& node) {
    auto reader = readers().find(word);
    if (reader == readers().end()) {
      std::string known;
      for (const auto& [name, read] : readers()) known += (known.empty() ? "" : ", ") + name;
      fail_at(node.line,
              "the statement '" + word + "' is not supported; supported are " + known + ", raw");
    }
    (this->*reader->second)(parser, node);
  }

  void stop(ExpressionParser& parser, Node& node) {
    node.kind = Node::stop;
    parser.expect_end();
  }

  void next(ExpressionParser& parser, Node& node) {
    node.kind = Node::next;
    parser.expect_end();
  }

  // The targets of an assignment: a, b or (a, b); for a namespace its member.
  std::vector<std::string> targets(ExpressionParser& parser) {
    bool in_parentheses = parser.take_symbol("(");
    std::vector<std::string> names;
    do {
      if (!names.empty() && (parser.sees_symbol(")") || parser.sees_symbol("="))) break;
      std::string name = parser.word();
      if (parser.take_symbol(".")) name += "." + parser.word();
      names.push_back(std::move(name));
    } while (parser.take_symbol(","));
    if (in_parentheses) parser.expect_symbol(")");
    return names;
  }

  void loop(ExpressionParser& parser, Node& node) {
    node.kind = Node::loop;
    node.names = targets(parser);
    parser.expect_word("in");
    node.expression = parser.disjunction();
    if (parser.take_word("if")) node.condition = parser.expression();
    if (parser.take_word("recursive"))
      fail_at(node.line, "a recursive loop is not supported; a macro can call itself");
    parser.expect_end();
    std::string ended_by;
    node.body = until({"else", "endfor"}, ended_by);
    if (ended_by == "else") node.other = body("endfor");
  }

  void branch(ExpressionParser& parser, Node& node) {
    node.kind = Node::branch;
    node.condition = parser.tuple();
    parser.expect_end();
    std::string ended_by;
    node.body = until({"elif", "else", "endif"}, ended_by);
    if (ended_by == "else") node.other = body("endif");
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
    node.names = targets(parser);
    if (parser.take_symbol("=")) {
      node.expression = parser.tuple();
      parser.expect_end();
      return;
    }
    node.kind = Node::set_body;
    node.expression = parser.filters(body_expression());
    parser.expect_end();
    node.body = body("endset");
  }

  void filtered(ExpressionParser& parser, Node& node) {
    node.kind = Node::filtered;
    node.expression = parser.filters(parser.filter(body_expression()));
    parser.expect_end();
    node.body = body("endfilter");
  }

  // name, name = default, ...) of a macro or caller.
  void parameters(ExpressionParser& parser, Node& node) {
    while (!parser.take_symbol(")")) {
      node.names.push_back(parser.word());
      node.defaults.push_back(parser.take_symbol("=") ? parser.expression() : nullptr);
      if (!parser.take_symbol(",") && !parser.sees_symbol(")")) parser.unexpected("',' or ')'");
    }
  }

  void macro(ExpressionParser& parser, Node& node) {
    node.kind = Node::macro;
    node.content = parser.word();
    parser.expect_symbol("(");
    parameters(parser, node);
    parser.expect_end();
    node.body = body("endmacro");
  }

  void call(ExpressionParser& parser, Node& node) {
    node.kind = Node::call;
    node.content = "caller";
    if (parser.take_symbol("(")) parameters(parser, node);
    node.expression = parser.expression();
    if (node.expression->kind != Expression::call)
      fail_at(node.line, "expected the call of a macro");
    parser.expect_end();
    node.body = body("endcall");
  }

  void with(ExpressionParser& parser, Node& node) {
    node.kind = Node::scope;
    while (node.names.empty() || parser.take_symbol(",")) {
      if (node.names.empty() && parser.at_end()) break;
      node.names.push_back(parser.word());
      parser.expect_symbol("=");
      node.defaults.push_back(parser.expression());
    }
    parser.expect_end();
    node.body = body("endwith");
  }

  // Marks the model's own text, for training; the output is that of its body.
  void generation(ExpressionParser& parser, Node& node) {
    node.kind = Node::spoken;
    parser.expect_end();
    node.body = body("endgeneration");
  }

  std::vector<Part> parts_;
  size_t at_ = 0;
  size_t closing_ = 0;
  int depth_ = 0;
};

}  // namespace

std::vector<Node> parse(const std::string& source, const Dialect& dialect) {
  try {
    return TemplateParser(source, dialect).all();
  } catch (const Error& error) {
    fail(dialect.name, ", ", error.what());
  }
}

bool marks_generation(const std::vector<Node>& nodes) {
  return std::any_of(nodes.begin(), nodes.end(), [](const Node& node) {
    return node.kind == Node::spoken || marks_generation(node.body) || marks_generation(node.other);
  });
}

}  // namespace redco::text::jinja
