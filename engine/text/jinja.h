#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace redco::text::jinja {

/// A value of a template.
struct Value {
  struct Undefined {
    std::string name;
  };
  struct None {};
  using List = std::vector<Value>;
  using Dict = std::vector<std::pair<std::string, Value>>;  ///< in the order of insertion

  std::variant<Undefined, None, bool, int64_t, double, std::string, std::shared_ptr<List>,
               std::shared_ptr<Dict>>
      data;
  int depth = 0;     ///< of lists and dictionaries in one another
  int64_t size = 0;  ///< the entries of a list or dictionary, with those of its entries

  template <class T>
  const T* get() const {
    return std::get_if<T>(&data);
  }
  const List* list() const;
  Dict* dict() const;
  /// The member of a dictionary; null when there is none.
  const Value* find(std::string_view key) const;
};

/// Both throw Error for what is too deep or too large to be walked.
Value make_list(Value::List list);
Value make_dict(Value::Dict dict);

/// An expression: what it is, and its parts.
struct Expression {
  enum Kind {
    literal,    ///< value
    name,       ///< text
    list,       ///< parts
    dict,       ///< parts: keys and values in turn
    attribute,  ///< of parts[0]: text
    subscript,  ///< of parts[0]: parts[1]
    slice,      ///< of parts[0]: parts 1 to 3, null where left out
    call,       ///< of parts[0]: the others, of which the last have `names`
    filter,     ///< text, of parts[0], with the others as arguments, of which the last have `names`
    test,       ///< text, of parts[0], with the others as arguments
    unary,      ///< operator text
    binary,     ///< operator text
    choice,     ///< parts[0] if parts[1] else parts[2], which may be null
  };
  Kind kind;
  std::string text;
  Value value;
  std::vector<std::unique_ptr<Expression>> parts;
  std::vector<std::string> names;
  int height = 1;  ///< of the tree
};
using ExpressionPtr = std::unique_ptr<Expression>;

/// A piece of a template.
struct Node {
  enum Kind {
    text,      ///< text
    output,    ///< expression
    loop,      ///< names in expression, if condition: body, else other
    branch,    ///< if condition: body, else other
    set,       ///< names = expression; with a dot the member of a namespace
    set_body,  ///< names = body
    stop,      ///< break
    next,      ///< continue
  };
  Kind kind = text;
  int line = 0;
  std::string content;
  std::vector<std::string> names;
  ExpressionPtr expression;
  ExpressionPtr condition;
  std::vector<Node> body;
  std::vector<Node> other;
};

/// Reads a template with trim_blocks and lstrip_blocks, as `transformers` does. Throws Error, with
/// the line, for what is not understood.
std::vector<Node> parse(const std::string& source);

/// What the template makes of the variables. Throws Error, with the line, for filters, tests,
/// methods and functions that are not known, for raise_exception, and for what runs without end.
std::string render(const std::vector<Node>& nodes, const Value::Dict& variables);

}  // namespace redco::text::jinja
