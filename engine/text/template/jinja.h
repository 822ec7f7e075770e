#pragma once

#include <redco/json.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

/// The part of Jinja that chat templates use: break and continue, no HTML escaping, and no
/// operations that modify the template's input. The default `Dialect` is that of `transformers`.
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
  /// In the order of insertion. Keys are what Python can hash.
  using Dict = std::vector<std::pair<Value, Value>>;
  using Named = std::vector<std::pair<std::string, Value>>;
  using Function = std::function<Value(const Arguments&)>;
  /// The Python type of a list or dictionary, where it matters. A string may be `markup`, which the
  /// filter `safe` makes: what is added to it gets its special characters escaped.
  enum class Kind : uint8_t { plain, tuple, generator, range, name_space, loop, markup };

  std::variant<Undefined, None, bool, int64_t, double, std::string, std::shared_ptr<List>,
               std::shared_ptr<Dict>, std::shared_ptr<Function>>
      data;
  Kind kind = Kind::plain;
  int depth = 0;     ///< of nested lists and dictionaries
  int64_t size = 0;  ///< entries of a list or dictionary, including nested ones

  template <class T>
  const T* get() const {
    return std::get_if<T>(&data);
  }
  const List* list() const;
  Dict* dict() const;
  const Function* function() const;
  /// The member of a dictionary; null if there is none.
  const Value* find(std::string_view key) const;
  const Value* find(const Value& key) const;
};

Value from_json(const Json& json);
/// Both throw Error for values that are too deep or too large to traverse.
Value make_list(Value::List list, Value::Kind kind = Value::Kind::plain);
Value make_dict(Value::Dict dict, Value::Kind kind = Value::Kind::plain);
Value make_members(Value::Named members, Value::Kind kind = Value::Kind::plain);
Value make_function(Value::Function function);

/// The arguments of a call; for a filter those after the value.
struct Arguments {
  std::vector<Value> positional;
  Value::Named named;
};

/// An expression: its kind and its parts.
struct Expression {
  enum Kind {
    literal,    ///< value
    name,       ///< text
    list,       ///< parts
    tuple,      ///< parts
    dict,       ///< parts: alternating keys and values
    attribute,  ///< of parts[0]: text
    subscript,  ///< of parts[0]: parts[1]
    slice,      ///< of parts[0]: parts 1 to 3, null if omitted
    call,       ///< of parts[0]: the others are arguments, the last ones with `names`; "*" and "**"
                ///< unpack
    filter,     ///< text, of parts[0]: the others are arguments, the last ones with `names`
    test,       ///< text, of parts[0]: the others are arguments
    unary,      ///< operator text
    binary,     ///< operator text
    comparison,  ///< of each part with the next, by the operators `names`
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

/// A node of a template.
struct Node {
  enum Kind {
    text,      ///< content
    output,    ///< expression
    loop,      ///< names in expression, if condition: body, else other
    branch,    ///< if condition: body, else other
    set,       ///< names = expression
    set_body,  ///< names = body, through the filters of the expression if any
    filtered,  ///< body through the filters of the expression
    macro,     ///< content(names = defaults): body
    call,      ///< expression, a call, with a macro of this node as `caller`
    scope,     ///< names = defaults: body, with its own variables
    spoken,    ///< body, which the model says
    stop,      ///< break
    next,      ///< continue
  };
  Kind kind = text;
  int line = 0;
  std::string content;
  std::vector<std::string> names;  ///< for `set` one may be "namespace.member"
  ExpressionPtr expression;
  ExpressionPtr condition;
  std::vector<ExpressionPtr> defaults;  ///< of the names; null for names without one
  std::vector<Node> body;
  std::vector<Node> other;
};

/// The variable to which the filters of a body apply; no template can name it.
inline constexpr const char* body_variable = " body";

/// How templates of a kind are read.
struct Dialect {
  const char* name = "chat template";  ///< in errors
  bool trims_blocks = true;            ///< Jinja's trim_blocks and lstrip_blocks
  bool keeps_last_newline = false;     ///< keep_trailing_newline
  bool is_strict = false;  ///< whether it is an error to write, test or loop over what is undefined
};

/// Parses a template. Throws Error, with the line, for unsupported or invalid syntax.
std::vector<Node> parse(const std::string& source, const Dialect& dialect = {});

/// Whether a template has a `generation` block.
bool marks_generation(const std::vector<Node>& nodes);

/// Bytes [begin, end) of a text.
using Spans = std::vector<std::pair<size_t, size_t>>;

/// Renders a template with variables. Throws Error, with the line, for unknown filters, tests,
/// methods and functions, for raise_exception, and for templates that run too long. `generated`
/// gets the outputs of `generation` blocks; one in a macro or in a block whose output is captured
/// is then an error.
std::string render(const std::vector<Node>& nodes, const Value::Named& variables,
                   Spans* generated = nullptr, const Dialect& dialect = {});

}  // namespace redco::text::jinja
