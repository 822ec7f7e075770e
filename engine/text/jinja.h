#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

/// The part of Jinja that chat templates use, as `transformers` sets it up: trim_blocks,
/// lstrip_blocks, break and continue, no escaping of HTML, nothing that changes what a template is
/// given.
///
/// Statements: for (with if and else), if, set (also of tuples, namespaces and blocks), macro,
/// call, filter, with, raw, generation, break, continue. Functions: namespace, range, dict,
/// raise_exception, strftime_now. Filters, tests and methods: the tables of jinja_filters.cpp,
/// jinja_tests.cpp and jinja_methods.cpp. Anything else is an error.
namespace redco::text::jinja {

struct Arguments;

/// A value of a template.
struct Value {
  struct Undefined {
    std::string name;
  };
  struct None {};
  using List = std::vector<Value>;
  using Dict = std::vector<std::pair<std::string, Value>>;  ///< in the order of insertion
  using Function = std::function<Value(const Arguments&)>;
  /// What a list or dictionary is in Python, where that shows.
  enum class Kind : uint8_t { plain, tuple, generator, range, name_space, loop };

  std::variant<Undefined, None, bool, int64_t, double, std::string, std::shared_ptr<List>,
               std::shared_ptr<Dict>, std::shared_ptr<Function>>
      data;
  Kind kind = Kind::plain;
  int depth = 0;     ///< of lists and dictionaries in one another
  int64_t size = 0;  ///< the entries of a list or dictionary, with those of its entries

  template <class T>
  const T* get() const {
    return std::get_if<T>(&data);
  }
  const List* list() const;
  Dict* dict() const;
  const Function* function() const;
  /// The member of a dictionary; null when there is none.
  const Value* find(std::string_view key) const;
};

/// Both throw Error for what is too deep or too large to be walked.
Value make_list(Value::List list, Value::Kind kind = Value::Kind::plain);
Value make_dict(Value::Dict dict, Value::Kind kind = Value::Kind::plain);
Value make_function(Value::Function function);

/// The arguments of a call, of a filter those after the value.
struct Arguments {
  std::vector<Value> positional;
  Value::Dict named;
};

/// An expression: what it is, and its parts.
struct Expression {
  enum Kind {
    literal,    ///< value
    name,       ///< text
    list,       ///< parts
    tuple,      ///< parts
    dict,       ///< parts: keys and values in turn
    attribute,  ///< of parts[0]: text
    subscript,  ///< of parts[0]: parts[1]
    slice,      ///< of parts[0]: parts 1 to 3, null where left out
    call,       ///< of parts[0]: the others, of which the last have `names`; "*" and "**" unpack
    filter,     ///< text, of parts[0], with the others as arguments, of which the last have `names`
    test,       ///< text, of parts[0], with the others as arguments
    unary,      ///< operator text
    binary,     ///< operator text
    comparison,  ///< of each part with the next by the operators `names`
    choice,      ///< parts[0] if parts[1] else parts[2], which may be null
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
    text,      ///< content
    output,    ///< expression
    loop,      ///< names in expression, if condition: body, else other
    branch,    ///< if condition: body, else other
    set,       ///< names = expression
    set_body,  ///< names = body, through the filters of the expression if there are some
    filtered,  ///< body through the filters of the expression
    macro,     ///< content(names = defaults): body
    call,      ///< expression, a call, with a macro of this node as `caller`
    scope,     ///< names = defaults: body, whose variables end with it
    stop,      ///< break
    next,      ///< continue
  };
  Kind kind = text;
  int line = 0;
  std::string content;
  std::vector<std::string> names;  ///< of `set` one may be "namespace.member"
  ExpressionPtr expression;
  ExpressionPtr condition;
  std::vector<ExpressionPtr> defaults;  ///< of the names, null for those without
  std::vector<Node> body;
  std::vector<Node> other;
};

/// The variable that filters of a body begin with: no template can name it.
inline constexpr const char* body_variable = " body";

/// Reads a template. Throws Error, with the line, for what is not understood.
std::vector<Node> parse(const std::string& source);

/// What the template makes of the variables. Throws Error, with the line, for filters, tests,
/// methods and functions that are not known, for raise_exception, and for what runs without end.
std::string render(const std::vector<Node>& nodes, const Value::Dict& variables);

}  // namespace redco::text::jinja
