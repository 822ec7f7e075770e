#include "jinja_values.h"

#include <redco/error.h>

#include <algorithm>
#include <map>

namespace redco::text::jinja {

namespace {

constexpr size_t longest_output = 1 << 26;
constexpr int64_t most_steps = 5'000'000;
constexpr int64_t longest_range = 100'000;
constexpr int64_t largest_bound = int64_t{1} << 53;

class Renderer {
 public:
  explicit Renderer(const Value::Dict& variables) : scopes_(1) {
    for (const auto& [name, value] : variables) scopes_[0][name] = value;
  }

  // Namespaces may hold one another.
  ~Renderer() {
    for (const Value& made : namespaces_) made.dict()->clear();
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
        write(to_text(evaluate(*node.expression)));
        break;
      case Node::loop:
        return loop(node);
      case Node::branch:
        return run_all(is_true(evaluate(*node.condition)) ? node.body : node.other);
      case Node::set:
        assign(node, evaluate(*node.expression));
        break;
      case Node::set_body: {
        std::string before = std::move(out_);
        out_.clear();
        run_all(node.body);
        std::string made = std::move(out_);
        out_ = std::move(before);
        assign(node, {made});
        break;
      }
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
    require(out_.size() <= longest_output, "it writes more than ", longest_output, " bytes");
  }

  void assign(const Node& node, Value value) {
    if (node.names.size() == 1) {
      scopes_.back()[node.names[0]] = std::move(value);
      return;
    }
    Value owner = look_up(node.names[0]);
    Value::Dict* members = owner.dict();
    bool is_namespace = std::any_of(namespaces_.begin(), namespaces_.end(),
                                    [&](const Value& made) { return made.dict() == members; });
    require(is_namespace, "'", node.names[0], "' is no namespace, so '", node.names[1],
            "' of it cannot be set");
    for (auto& [name, member] : *members)
      if (name == node.names[1]) {
        member = std::move(value);
        return;
      }
    members->emplace_back(node.names[1], std::move(value));
  }

  void bind(const Node& node, const Value& item) {
    if (node.names.size() == 1) {
      scopes_.back()[node.names[0]] = item;
      return;
    }
    const Value::List* parts = item.list();
    require(parts && parts->size() == node.names.size(), "a loop over ", node.names.size(),
            " names got ", kind_of(item));
    for (size_t i = 0; i < node.names.size(); ++i) scopes_.back()[node.names[i]] = (*parts)[i];
  }

  Value::List items_of(const Value& value) {
    if (const Value::List* list = value.list()) return *list;
    require(value.dict() != nullptr, "a loop over ", kind_of(value), ", expected a list");
    return *call_method("keys", value, {}).list();
  }

  Flow loop(const Node& node) {
    Value::List items = items_of(evaluate(*node.expression));
    count_steps(static_cast<int64_t>(items.size()));
    if (node.condition)
      std::erase_if(items, [&](const Value& item) {
        scopes_.emplace_back();
        bind(node, item);
        bool kept = is_true(evaluate(*node.condition));
        scopes_.pop_back();
        return !kept;
      });
    if (items.empty()) return run_all(node.other);
    auto count = static_cast<int64_t>(items.size());
    for (int64_t i = 0; i < count; ++i) {
      count_steps();
      auto at = [&](int64_t k) {
        return k >= 0 && k < count ? items[static_cast<size_t>(k)]
                                   : Value{Value::Undefined{"loop"}};
      };
      scopes_.emplace_back();
      scopes_.back()["loop"] = make_dict({{"index", {i + 1}},
                                          {"index0", {i}},
                                          {"revindex", {count - i}},
                                          {"revindex0", {count - i - 1}},
                                          {"first", {i == 0}},
                                          {"last", {i + 1 == count}},
                                          {"length", {count}},
                                          {"previtem", at(i - 1)},
                                          {"nextitem", at(i + 1)}});
      bind(node, items[static_cast<size_t>(i)]);
      Flow flow = run_all(node.body);
      scopes_.pop_back();
      if (flow == Flow::stop) break;
    }
    return Flow::on;
  }

  Value look_up(const std::string& name) const {
    for (size_t i = scopes_.size(); i-- > 0;) {
      auto found = scopes_[i].find(name);
      if (found != scopes_[i].end()) return found->second;
    }
    return {Value::Undefined{name}};
  }

  Arguments arguments(const Expression& call) {
    Arguments result;
    size_t n_positional = call.parts.size() - 1 - call.names.size();
    for (size_t i = 1; i < call.parts.size(); ++i) {
      Value value = evaluate(*call.parts[i]);
      if (i <= n_positional)
        result.positional.push_back(std::move(value));
      else
        result.named[call.names[i - 1 - n_positional]] = std::move(value);
    }
    return result;
  }

  Value evaluate(const Expression& e) {
    Value value = value_of(e);
    // Texts are copied, lists are shared where they have a name, yet an operator may walk them.
    bool has_name = e.kind == Expression::name || e.kind == Expression::attribute ||
                    e.kind == Expression::subscript;
    const std::string* text = value.get<std::string>();
    count_steps(1 + (text       ? static_cast<int64_t>(text->size()) / 256
                     : has_name ? value.size / 64
                                : value.size));
    return value;
  }

  Value value_of(const Expression& e) {
    switch (e.kind) {
      case Expression::literal:
        return e.value;
      case Expression::name:
        return look_up(e.text);
      case Expression::list: {
        Value::List list;
        for (const auto& part : e.parts) list.push_back(evaluate(*part));
        return make_list(std::move(list));
      }
      case Expression::dict: {
        Value::Dict dict;
        for (size_t i = 0; i + 1 < e.parts.size(); i += 2)
          dict.emplace_back(to_text(evaluate(*e.parts[i])), evaluate(*e.parts[i + 1]));
        return make_dict(std::move(dict));
      }
      case Expression::attribute:
        return member(evaluate(*e.parts[0]), {e.text});
      case Expression::subscript:
        return member(evaluate(*e.parts[0]), evaluate(*e.parts[1]));
      case Expression::slice:
        return slice(e);
      case Expression::call:
        return call(e);
      case Expression::filter:
        return apply_filter(e.text, evaluate(*e.parts[0]), arguments(e));
      case Expression::test:
        return {apply_test(e.text, evaluate(*e.parts[0]), arguments(e))};
      case Expression::unary: {
        Value value = evaluate(*e.parts[0]);
        return e.text == "not" ? Value{!is_true(value)} : apply_operator("-", {int64_t{0}}, value);
      }
      case Expression::binary:
        return binary(e);
      case Expression::choice: {
        if (is_true(evaluate(*e.parts[1]))) return evaluate(*e.parts[0]);
        return e.parts[2] ? evaluate(*e.parts[2]) : Value{Value::Undefined{"else"}};
      }
    }
    fail("an expression of an unknown kind");
  }

  Value binary(const Expression& e) {
    Value left = evaluate(*e.parts[0]);
    if (e.text == "and") return is_true(left) ? evaluate(*e.parts[1]) : left;
    if (e.text == "or") return is_true(left) ? left : evaluate(*e.parts[1]);
    return apply_operator(e.text, left, evaluate(*e.parts[1]));
  }

  Value member(const Value& owner, const Value& key) {
    require(!owner.get<Value::Undefined>(), kind_of(owner), ", has no members");
    if (const int64_t* index = key.get<int64_t>()) {
      const Value::List* list = owner.list();
      require(list != nullptr, "entry ", *index, " of ", kind_of(owner));
      auto size = static_cast<int64_t>(list->size());
      int64_t at = *index < 0 ? *index + size : *index;
      if (at < 0 || at >= size) return {Value::Undefined{"[" + std::to_string(*index) + "]"}};
      return (*list)[static_cast<size_t>(at)];
    }
    const std::string* name = key.get<std::string>();
    require(name != nullptr, "a member is named by a string or an integer, got ", kind_of(key));
    const Value* found = owner.find(*name);
    return found ? *found : Value{Value::Undefined{*name}};
  }

  Value slice(const Expression& e) {
    Value whole = evaluate(*e.parts[0]);
    const Value::List* list = whole.list();
    const std::string* text = whole.get<std::string>();
    require(list || text, "a slice of ", kind_of(whole));
    auto bound = [&](size_t i, int64_t fallback) {
      if (!e.parts[i]) return fallback;
      Value value = evaluate(*e.parts[i]);
      if (value.get<Value::None>()) return fallback;
      const int64_t* integer = value.get<int64_t>();
      require(integer != nullptr, "a slice's bound is ", kind_of(value));
      return *integer;
    };
    int64_t step = bound(3, 1);
    require(step == 1 || (step == -1 && !e.parts[1] && !e.parts[2] && list),
            "a slice's step is only 1, or -1 of a whole list");
    if (step == -1) return make_list({list->rbegin(), list->rend()});
    auto size = static_cast<int64_t>(list ? list->size() : text->size());
    auto clamp = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size); };
    int64_t begin = clamp(bound(1, 0)), end = std::max(begin, clamp(bound(2, size)));
    if (list) return make_list({list->begin() + begin, list->begin() + end});
    require(std::all_of(text->begin(), text->end(), [](char c) { return (c & 0x80) == 0; }),
            "a slice of a text that is not ASCII is not supported");
    return {text->substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin))};
  }

  Value call(const Expression& e) {
    const Expression& callee = *e.parts[0];
    if (callee.kind == Expression::attribute) {
      Value owner = evaluate(*callee.parts[0]);
      return call_method(callee.text, owner, arguments(e));
    }
    require(callee.kind == Expression::name, "what is called is no function");
    Arguments given = arguments(e);
    if (callee.text == "raise_exception")
      fail("the template refuses these messages: ",
           given.positional.empty() ? "" : to_text(given.positional[0]));
    if (callee.text == "namespace") {
      namespaces_.push_back(make_dict({given.named.begin(), given.named.end()}));
      return namespaces_.back();
    }
    require(callee.text == "range", "the function '", callee.text,
            "' is not supported; supported are namespace, raise_exception, range");
    return range(given);
  }

  Value range(const Arguments& given) {
    std::vector<int64_t> numbers;
    for (const Value& value : given.positional) {
      const int64_t* number = value.get<int64_t>();
      require(number != nullptr, "range of ", kind_of(value));
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
      require(static_cast<int64_t>(list.size()) <= longest_range, "range: more than ",
              longest_range);
    }
    return make_list(std::move(list));
  }

  std::vector<std::map<std::string, Value>> scopes_;
  std::vector<Value> namespaces_;
  std::string out_;
  int64_t steps_ = 0;
  int line_ = 1;
};

}  // namespace

std::string render(const std::vector<Node>& nodes, const Value::Dict& variables) {
  Renderer renderer(variables);
  try {
    return renderer.render(nodes);
  } catch (const Interrupted&) {
    throw;
  } catch (const Error& error) {
    fail("chat template, line ", renderer.line(), ": ", error.what());
  }
}

}  // namespace redco::text::jinja
