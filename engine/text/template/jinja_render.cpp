// Renders Jinja templates.

#include "jinja_text.h"
#include "jinja_values.h"

#include <redco/error.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <map>

namespace redco::text::jinja {

namespace {

constexpr int64_t most_steps = 5'000'000;
constexpr int64_t longest_range = 100'000;
constexpr int64_t largest_bound = int64_t{1} << 53;
constexpr int deepest_evaluation =
    700;  // of nested expressions and macro calls: the stack is limited

Value range(const Arguments& given) {
  std::vector<int64_t> numbers;
  for (const Value& value : given.positional) {
    auto number = integer_of(value);
    require(number.has_value(), "range of ", kind_of(value));
    require(*number > -largest_bound && *number < largest_bound, "range of ", *number);
    numbers.push_back(*number);
  }
  require(!numbers.empty() && numbers.size() <= 3, "range takes one to three integers");
  int64_t begin = numbers.size() > 1 ? numbers[0] : 0;
  int64_t end = numbers.size() > 1 ? numbers[1] : numbers[0];
  int64_t step = numbers.size() > 2 ? numbers[2] : 1;
  require(step != 0, "range: the step is 0");
  Value::List list;
  for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
    list.push_back({i});
    require(int64_t(list.size()) <= longest_range, "range: more than ", longest_range);
  }
  return make_list(std::move(list), Value::Kind::range);
}

// Builds a dictionary from another, or from pairs, and from the named arguments.
Value::Dict dict_of(const Arguments& given) {
  Value::Dict members;
  require(given.positional.size() <= 1, "dict takes one dictionary or list of pairs");
  if (!given.positional.empty()) {
    const Value& from = given.positional[0];
    if (const Value::Dict* dict = from.dict()) {
      members = *dict;
    } else {
      for (const Value& pair : items_of(from, "dict")) {
        require(pair.list() && pair.list()->size() == 2, "dict: expected pairs, got ",
                kind_of(pair));
        set_member(members, (*pair.list())[0], (*pair.list())[1]);
      }
    }
  }
  for (const auto& [name, value] : given.named) set_member(members, Value{name}, value);
  return members;
}

Value raise_exception(const Arguments& given) {
  fail("the template refuses these messages: ",
       given.positional.empty() ? "" : to_text(given.positional[0]));
}

Value strftime_now(const Arguments& given) {
  std::string format = text_argument(given, 0, "format");
  std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 4096> text;
  size_t size = std::strftime(text.data(), text.size(), format.c_str(), &local);
  require(size > 0 || format.empty(), "strftime_now: the text of '", format, "' is too long");
  return {std::string(text.data(), size)};
}

class Renderer {
 public:
  Renderer(const Value::Named& variables, Spans* generated, bool is_strict)
      : scopes_{globals_}, generated_(generated), is_strict_(is_strict) {
    Scope& globals = *globals_;
    globals["range"] = make_function(range);
    globals["dict"] =
        make_function([](const Arguments& given) { return make_dict(dict_of(given)); });
    globals["namespace"] = make_function([this](const Arguments& given) {
      namespaces_.push_back(make_dict(dict_of(given), Value::Kind::name_space));
      return namespaces_.back();
    });
    globals["raise_exception"] = make_function(raise_exception);
    globals["strftime_now"] = make_function(strftime_now);
    for (const auto& [name, value] : variables) globals[name] = value;
  }

  // Breaks reference cycles: namespaces may refer to each other, and macros to the scopes that hold
  // them.
  ~Renderer() {
    for (const Value& made : namespaces_) made.dict()->clear();
    globals_->clear();
  }
  Renderer(const Renderer&) = delete;
  Renderer& operator=(const Renderer&) = delete;

  int line() const { return line_; }

  std::string render(const std::vector<Node>& nodes) {
    run_all(nodes);
    return std::move(out_);
  }

 private:
  enum class Flow { on, stop, next };
  using Scope = std::map<std::string, Value>;
  using Scopes = std::vector<std::shared_ptr<Scope>>;

  // Counts the nesting depth on the stack.
  class Deeper {
   public:
    explicit Deeper(int& depth) : depth_(depth) {
      require(++depth_ <= deepest_evaluation, "expressions and macros are nested too deep");
    }
    ~Deeper() { --depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    int& depth_;
  };

  Flow run_all(const std::vector<Node>& nodes) {
    for (const Node& node : nodes) {
      line_ = node.line;
      Flow flow = run(node);
      if (flow != Flow::on) return flow;
    }
    return Flow::on;
  }

  Flow run(const Node& node) {
    count_steps();
    switch (node.kind) {
      case Node::text:
        write(node.content);
        break;
      case Node::output:
        write(to_text(defined(*node.expression)));
        break;
      case Node::loop:
        return loop(node);
      case Node::branch:
        return run_all(is_true(defined(*node.condition)) ? node.body : node.other);
      case Node::set:
        assign(node.names, evaluate(*node.expression));
        break;
      case Node::set_body:
        assign(node.names, filtered_body(node));
        break;
      case Node::filtered:
        write(to_text(filtered_body(node)));
        break;
      case Node::macro:
        (*scopes_.back())[node.content] = macro(node);
        break;
      case Node::call:
        write(to_text(call(*node.expression, macro(node))));
        break;
      case Node::scope:
        return scope(node);
      case Node::spoken:
        return generation(node);
      case Node::stop:
        return Flow::stop;
      case Node::next:
        return Flow::next;
    }
    return Flow::on;
  }

  void count_steps(int64_t n = 1) {
    if (steps_ / 4096 != (steps_ + n) / 4096) check_interrupt();
    steps_ += n;
    require(steps_ < most_steps, "it takes more than ", most_steps, " steps");
  }

  void write(const std::string& text) {
    out_ += text;
    require(out_.size() <= longest_text, "it writes more than ", longest_text, " bytes");
  }

  // The output of the nodes; variables set in them are local.
  std::string written(const std::vector<Node>& nodes) {
    std::string before = std::move(out_);
    out_.clear();
    scopes_.push_back(std::make_shared<Scope>());
    ++captures_;
    run_all(nodes);
    --captures_;
    scopes_.pop_back();
    std::swap(out_, before);
    return before;
  }

  Value filtered_body(const Node& node) {
    Value text{written(node.body)};
    scopes_.push_back(std::make_shared<Scope>(Scope{{body_variable, text}}));
    Value value = evaluate(*node.expression);
    scopes_.pop_back();
    return value;
  }

  Flow scope(const Node& node) {
    auto inner = std::make_shared<Scope>();
    for (size_t i = 0; i < node.names.size(); ++i)
      (*inner)[node.names[i]] = evaluate(*node.defaults[i]);
    scopes_.push_back(std::move(inner));
    Flow flow = run_all(node.body);
    scopes_.pop_back();
    return flow;
  }

  Flow generation(const Node& node) {
    require(!generated_ || captures_ == 0,
            "a generation block in a macro, or in a block of set, filter or call, cannot be found "
            "in the output");
    size_t begin = out_.size();
    Flow flow = scope(node);
    if (generated_) generated_->emplace_back(begin, out_.size());
    return flow;
  }

  void assign(const std::vector<std::string>& names, const Value& value) {
    if (names.size() == 1) return assign(names[0], value);
    Value::List parts = items_of(value, "unpacking");
    require(parts.size() == names.size(), names.size(), " names get ", parts.size(), " values");
    for (size_t i = 0; i < names.size(); ++i) assign(names[i], parts[i]);
  }

  void assign(const std::string& name, const Value& value) {
    size_t dot = name.find('.');
    if (dot == name.npos) {
      (*scopes_.back())[name] = value;
      return;
    }
    std::string owner = name.substr(0, dot), member = name.substr(dot + 1);
    Value found = look_up_variable(owner);
    require(found.kind == Value::Kind::name_space, "'", owner, "' is no namespace, so '", member,
            "' of it cannot be set");
    set_member(*found.dict(), Value{member}, value);
  }

  Flow loop(const Node& node) {
    Value::List items = items_of(defined(*node.expression), "a loop");
    count_steps(int64_t(items.size()));
    if (node.condition)
      std::erase_if(items, [&](const Value& item) {
        scopes_.push_back(std::make_shared<Scope>());
        assign(node.names, item);
        bool kept = is_true(evaluate(*node.condition));
        scopes_.pop_back();
        return !kept;
      });
    bool is_complete = false;  // whether any iteration completed
    auto changed_from = std::make_shared<Value>();
    for (size_t i = 0; i < items.size(); ++i) {
      count_steps();
      scopes_.push_back(std::make_shared<Scope>());
      (*scopes_.back())["loop"] = loop_variable(items, i, changed_from);
      assign(node.names, items[i]);
      Flow flow = run_all(node.body);
      scopes_.pop_back();
      is_complete |= flow == Flow::on;
      if (flow == Flow::stop) break;
    }
    if (is_complete) return Flow::on;
    // Jinja's `else` also runs if no iteration completed.
    scopes_.push_back(std::make_shared<Scope>());
    Flow flow = run_all(node.other);
    scopes_.pop_back();
    return flow;
  }

  Value loop_variable(const Value::List& items, size_t i, const std::shared_ptr<Value>& last) {
    auto at = int64_t(i), count = int64_t(items.size());
    Value none{Value::Undefined{"loop"}};
    auto cycle = [i](const Arguments& given) {
      require(!given.positional.empty(), "cycle: there are no values");
      return given.positional[i % given.positional.size()];
    };
    auto changed = [last](const Arguments& given) {
      Value now = make_list(given.positional);
      bool is_new = !is_equal(*last, now);
      *last = now;
      return Value{is_new};
    };
    return make_members({{"index", {at + 1}},
                         {"index0", {at}},
                         {"revindex", {count - at}},
                         {"revindex0", {count - at - 1}},
                         {"first", {at == 0}},
                         {"last", {at + 1 == count}},
                         {"length", {count}},
                         {"depth", {int64_t{1}}},
                         {"depth0", {int64_t{0}}},
                         {"previtem", i > 0 ? items[i - 1] : none},
                         {"nextitem", i + 1 < items.size() ? items[i + 1] : none},
                         {"cycle", make_function(cycle)},
                         {"changed", make_function(changed)}},
                        Value::Kind::loop);
  }

  // A macro sees its arguments, the variables of enclosing scopes, and the globals of the template.
  Value macro(const Node& node) {
    Scopes around(scopes_.begin(), scopes_.end());
    // Local scopes are copied in their current state, which avoids a cycle through the macro's own
    // name.
    for (size_t i = 1; i < around.size(); ++i) around[i] = std::make_shared<Scope>(*around[i]);
    return make_function([this, &node, around](const Arguments& given) -> Value {
      Deeper deeper(depth_);
      int line = line_;
      Scopes outer = std::move(scopes_);
      scopes_ = around;
      scopes_.push_back(std::make_shared<Scope>());
      bind(node, given);
      std::string text = written(node.body);
      scopes_ = std::move(outer);
      line_ = line;
      return {text};
    });
  }

  void bind(const Node& node, const Arguments& given) {
    Scope& scope = *scopes_.back();
    require(given.positional.size() <= node.names.size(), node.content, " takes ",
            node.names.size(), " arguments, got ", given.positional.size());
    for (const auto& [name, value] : given.named) {
      bool is_known = name == "caller" ||
                      std::find(node.names.begin(), node.names.end(), name) != node.names.end();
      require(is_known, node.content, " has no argument '", name, "'");
      scope[name] = value;
    }
    for (size_t i = 0; i < node.names.size(); ++i) {
      const std::string& name = node.names[i];
      if (i < given.positional.size())
        scope[name] = given.positional[i];
      else if (scope.count(name) == 0)
        scope[name] =
            node.defaults[i] ? evaluate(*node.defaults[i]) : Value{Value::Undefined{name}};
    }
  }

  Value look_up_variable(const std::string& name) const {
    for (size_t i = scopes_.size(); i-- > 0;) {
      auto found = scopes_[i]->find(name);
      if (found != scopes_[i]->end()) return found->second;
    }
    return {Value::Undefined{name}};
  }

  Arguments arguments(const Expression& call) {
    Arguments result;
    size_t n_positional = call.parts.size() - 1 - call.names.size();
    for (size_t i = 1; i < call.parts.size(); ++i) {
      Value value = evaluate(*call.parts[i]);
      std::string name = i <= n_positional ? "" : call.names[i - 1 - n_positional];
      if (name.empty()) {
        result.positional.push_back(std::move(value));
      } else if (name == "*") {
        for (Value& item : items_of(value, "unpacking"))
          result.positional.push_back(std::move(item));
      } else if (name == "**") {
        require(value.dict() != nullptr, "unpacking with ** of ", kind_of(value));
        for (const auto& [key, member] : *value.dict())
          set_member(result.named, text_of(key), member);
      } else {
        set_member(result.named, name, std::move(value));
      }
    }
    return result;
  }

  Value evaluate(const Expression& e) {
    Deeper deeper(depth_);
    Value value = value_of(e);
    // Counts steps by size: texts are copied, and named lists are shared, but an operator may
    // traverse them.
    bool has_name = e.kind == Expression::name || e.kind == Expression::attribute ||
                    e.kind == Expression::subscript;
    const std::string* text = value.get<std::string>();
    count_steps(1 + (text ? int64_t(text->size()) / 256 : has_name ? value.size / 64 : value.size));
    return value;
  }

  // Evaluates an expression that must be defined.
  Value defined(const Expression& e) {
    Value value = evaluate(e);
    if (const auto* missing = value.get<Value::Undefined>())
      require(!is_strict_, "'", missing->name, "' is not defined");
    return value;
  }

  Value value_of(const Expression& e) {
    switch (e.kind) {
      case Expression::literal:
        return e.value;
      case Expression::name:
        return look_up_variable(e.text);
      case Expression::list:
      case Expression::tuple:
        return list(e);
      case Expression::dict:
        return dict(e);
      case Expression::attribute:
        return attribute(evaluate(*e.parts[0]), e.text);
      case Expression::subscript:
        return member(evaluate(*e.parts[0]), evaluate(*e.parts[1]));
      case Expression::slice:
        return slice(e);
      case Expression::call:
        return call(e, std::nullopt);
      case Expression::filter:
        return apply_filter(e.text, evaluate(*e.parts[0]), arguments(e));
      case Expression::test:
        return {apply_test(e.text, evaluate(*e.parts[0]), arguments(e))};
      case Expression::unary:
        return unary(e);
      case Expression::binary:
        return binary(e);
      case Expression::comparison:
        return {comparison(e)};
      case Expression::choice:
        if (is_true(evaluate(*e.parts[1]))) return evaluate(*e.parts[0]);
        return e.parts[2] ? evaluate(*e.parts[2]) : Value{Value::Undefined{"else"}};
    }
    fail("an expression of an unknown kind");
  }

  Value list(const Expression& e) {
    Value::List list;
    for (const auto& part : e.parts) list.push_back(evaluate(*part));
    bool is_tuple = e.kind == Expression::tuple;
    return make_list(std::move(list), is_tuple ? Value::Kind::tuple : Value::Kind::plain);
  }

  Value dict(const Expression& e) {
    Value::Dict dict;
    for (size_t i = 0; i + 1 < e.parts.size(); i += 2) {
      Value key = evaluate(*e.parts[i]);
      set_member(dict, key, evaluate(*e.parts[i + 1]));
    }
    return make_dict(std::move(dict));
  }

  Value unary(const Expression& e) {
    Value value = evaluate(*e.parts[0]);
    if (e.text == "not") return {!is_true(value)};
    if (value.get<double>()) return {e.text == "-" ? -*value.get<double>() : *value.get<double>()};
    return apply_operator(e.text, {int64_t{0}}, value);
  }

  Value binary(const Expression& e) {
    Value left = evaluate(*e.parts[0]);
    if (e.text == "and") return is_true(left) ? evaluate(*e.parts[1]) : left;
    if (e.text == "or") return is_true(left) ? left : evaluate(*e.parts[1]);
    return apply_operator(e.text, left, evaluate(*e.parts[1]));
  }

  // As in Python, a < b < c is a < b and b < c.
  bool comparison(const Expression& e) {
    Value left = evaluate(*e.parts[0]);
    for (size_t i = 0; i < e.names.size(); ++i) {
      Value right = evaluate(*e.parts[i + 1]);
      if (!is_true(apply_operator(e.names[i], left, right))) return false;
      left = std::move(right);
    }
    return true;
  }

  Value slice(const Expression& e) {
    Value whole = evaluate(*e.parts[0]);
    std::optional<int64_t> bounds[3];
    for (size_t i = 0; i < 3; ++i) {
      if (!e.parts[i + 1]) continue;
      Value value = evaluate(*e.parts[i + 1]);
      if (value.get<Value::None>()) continue;
      bounds[i] = integer_of(value);
      require(bounds[i].has_value(), "a slice's bound is ", kind_of(value));
    }
    count_steps(whole.size);
    return jinja::slice(whole, bounds[0], bounds[1], bounds[2]);
  }

  Value call(const Expression& e, std::optional<Value> caller) {
    Value callee = evaluate(*e.parts[0]);
    Arguments given = arguments(e);
    if (caller) set_member(given.named, "caller", std::move(*caller));
    require(callee.function() != nullptr, "only a function can be called, got ", kind_of(callee));
    return (*callee.function())(given);
  }

  std::shared_ptr<Scope> globals_ = std::make_shared<Scope>();
  Scopes scopes_;
  std::vector<Value> namespaces_;
  std::string out_;
  Spans* generated_;
  bool is_strict_;
  int captures_ = 0;  ///< macros and blocks, around this node, whose output is captured
  int64_t steps_ = 0;
  int line_ = 1;
  int depth_ = 0;
};

}  // namespace

std::string render(const std::vector<Node>& nodes, const Value::Named& variables, Spans* generated,
                   const Dialect& dialect) {
  Renderer renderer(variables, generated, dialect.is_strict);
  try {
    return renderer.render(nodes);
  } catch (const Interrupted&) {
    throw;
  } catch (const Error& error) {
    fail(dialect.name, ", line ", renderer.line(), ": ", error.what());
  }
}

}  // namespace redco::text::jinja
