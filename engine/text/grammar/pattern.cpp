// Regular expressions as automata.

#include "../utf8.h"
#include "grammar.h"
#include "language.h"

#include <redco/error.h>

#include <utf8proc.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace redco::text {

namespace {

using Ranges = std::vector<CodePoints>;

constexpr int64_t most_repeats = 10000;
constexpr size_t most_nfa_states = 200000, most_nested = 200;

struct Expression {
  enum Kind { set, sequence, choice, repeat, begin, end };
  Kind kind;
  Ranges ranges = {};
  std::vector<Expression> parts = {};
  int64_t least = 0, most = 0;
};

struct Assertion {
  Expression expression;
  bool is_negative;
};

const Ranges& digits() {
  static const Ranges all{{'0', '9'}};
  return all;
}
const Ranges& word() {
  static const Ranges all{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return all;
}
// U+FEFF is a blank for JavaScript, but not for Python: neither \s nor \S writes it.
const Ranges& blanks() {
  static const Ranges all{{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},
                          {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029},
                          {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};
  return all;
}
const Ranges& not_blanks() {
  static const Ranges all = [] {
    Ranges others = blanks();
    others.push_back({0xFEFF, 0xFEFF});
    return complement_of(std::move(others));
  }();
  return all;
}

// The characters of a general category of Unicode, such as Lu, or of a class of them, such as L.
Ranges category(const std::string& name) {
  static const std::set<std::string> classes{"L", "M", "N", "P", "S", "Z", "C"};
  Ranges found;
  bool is_known = classes.contains(name);
  for (char32_t c = 0; c <= last_code_point; ++c) {
    const std::string own = utf8proc_category_string(utf8proc_int32_t(c));
    if (own != name && !(name.size() == 1 && own[0] == name[0])) continue;
    is_known = true;
    if (!found.empty() && found.back().last + 1 == c)
      found.back().last = c;
    else
      found.push_back({c, c});
  }
  require(is_known, "\\p{", name, "} is not supported: give a category such as L or Nd");
  return found;
}

class PatternReader {
 public:
  explicit PatternReader(std::string_view text) : text_(text) {}

  Expression read() {
    Expression all = choice();
    require(at_ == text_.size(), "unmatched ) at byte ", at_);
    require(assertions.empty() || all.parts.size() == 1,
            "(?= and its kin cannot stand beside | outside of a group");
    return all;
  }

  std::vector<Assertion> assertions = {};

 private:
  bool has(std::string_view next) const { return text_.substr(at_).starts_with(next); }
  bool take(std::string_view next) {
    const bool is_next = has(next);
    if (is_next) at_ += next.size();
    return is_next;
  }
  char32_t take_character() {
    require(at_ < text_.size(), "it ends too early");
    const CodePoint c = code_point_at(text_, at_);
    at_ += c.size;
    return c.value;
  }

  Expression choice() {
    require(++level_ <= most_nested, "more than ", most_nested, " groups are in each other");
    Expression all{Expression::choice};
    do all.parts.push_back(sequence(all.parts.empty()));
    while (take("|"));
    --level_;
    return all;
  }

  Expression sequence(bool is_first) {
    Expression all{Expression::sequence};
    while (at_ < text_.size() && !has("|") && !has(")")) {
      if (has("(?=") || has("(?!") || has("(?<=") || has("(?<!")) {
        const bool is_first_part = level_ == 1 && is_first && all.parts.size() == 1 &&
                                   all.parts[0].kind == Expression::begin && !has("(?<");
        require(is_first_part, text_.substr(at_, has("(?<") ? 4 : 3),
                " is supported only after the ^ that begins a pattern");
        const bool is_negative = has("(?!");
        at_ += 3;
        assertions.push_back({choice(), is_negative});
        require(take(")"), "a ) is missing");
        continue;
      }
      all.parts.push_back(repeated(single()));
    }
    return all;
  }

  Expression single() {
    if (take("^")) return {Expression::begin};
    if (take("$")) return {Expression::end};
    if (take("(")) {
      if (take("?<")) {
        const size_t end = text_.find('>', at_);
        require(end != std::string_view::npos, "a > is missing");
        at_ = end + 1;
      } else if (!take("?:")) {
        require(!has("?"), text_.substr(at_ - 1, 3), " is not supported");
      }
      Expression inner = choice();
      require(take(")"), "a ) is missing");
      return inner;
    }
    if (take("[")) return {Expression::set, character_class()};
    if (take("."))
      return {Expression::set, complement_of({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}})};
    if (take("\\")) return {Expression::set, escape(false)};
    require(!has("*") && !has("+") && !has("?"), "nothing to repeat before byte ", at_);
    const char32_t c = take_character();
    return {Expression::set, {{c, c}}};
  }

  Expression repeated(Expression part) {
    for (bool is_first = true;; is_first = false) {
      int64_t least = 0, most = Grammar::unlimited;
      if (take("+")) {
        least = 1;
      } else if (take("?")) {
        most = 1;
      } else if (!take("*")) {
        const auto counts = braces();
        if (!counts) return part;
        std::tie(least, most) = *counts;
      }
      require(is_first, "nothing to repeat before byte ", at_);
      require(part.kind != Expression::begin && part.kind != Expression::end,
              "^ and $ cannot be repeated");
      take("?");  // takes as little as it can: the texts are the same
      part = {Expression::repeat, {}, {std::move(part)}, least, most};
    }
  }

  // {m}, {m,} or {m,n}; any other { is a character.
  std::optional<std::pair<int64_t, int64_t>> braces() {
    const size_t start = at_;
    auto number = [&]() -> std::optional<int64_t> {
      int64_t value = 0;
      const size_t first = at_;
      for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
        value = std::min<int64_t>(10 * value + (text_[at_] - '0'), most_repeats + 1);
      require(value <= most_repeats, "more than ", most_repeats, " repetitions");
      return at_ > first ? std::optional(value) : std::nullopt;
    };
    if (take("{")) {
      if (const auto least = number()) {
        const bool has_comma = take(",");
        const auto most = has_comma ? number() : least;
        if (take("}")) {
          require(!most || *most >= *least, "{", *least, ",", most.value_or(0),
                  "}: the second number is less than the first");
          return std::pair(*least, most.value_or(Grammar::unlimited));
        }
      }
    }
    at_ = start;
    return std::nullopt;
  }

  // Reads what follows a backslash.
  Ranges escape(bool is_in_class) {
    const char32_t c = take_character();
    auto one = [](char32_t value) { return Ranges{{value, value}}; };
    switch (c) {
      case 'd':
        return digits();
      case 'D':
        return complement_of(digits());
      case 'w':
        return word();
      case 'W':
        return complement_of(word());
      case 's':
        return blanks();
      case 'S':
        return not_blanks();
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'v':
        return one('\v');
      case 'f':
        return one('\f');
      case 'r':
        return one('\r');
      case '0':
        require(at_ == text_.size() || text_[at_] < '0' || text_[at_] > '9',
                "octal numbers are not supported");
        return one(0);
      case 'c': {
        const char32_t letter = take_character();
        require((letter | 32) >= 'a' && (letter | 32) <= 'z', "\\c: expected a letter");
        return one(letter % 32);
      }
      case 'x':
        return one(hex(2));
      case 'u': {
        if (take("{")) {
          const size_t end = text_.find('}', at_);
          require(end != std::string_view::npos && end - at_ <= 6, "\\u{: expected }");
          const char32_t value = hex(end - at_);
          ++at_;
          require(value <= last_code_point, "\\u{: there is no such character");
          return one(value);
        }
        const char32_t high = hex(4);
        if (high < 0xD800 || high > 0xDBFF || !take("\\u")) return one(high);
        return one(0x10000 + ((high - 0xD800) << 10) + (hex(4) - 0xDC00));
      }
      case 'p':
      case 'P': {
        const size_t end = text_.find('}', at_);
        require(take("{") && end != std::string_view::npos, "\\p: expected {");
        const Ranges found = category(std::string(text_.substr(at_, end - at_)));
        at_ = end + 1;
        return c == 'p' ? found : complement_of(found);
      }
      case 'b':
        if (is_in_class) return one('\b');
        break;
      default:
        if (c < '0' || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') || c > 'z') return one(c);
    }
    std::string name;
    append_code_point(name, c);
    fail("\\", name, " is not supported");
  }

  char32_t hex(size_t n_digits) {
    char32_t value = 0;
    require(n_digits > 0, "expected a hexadecimal number");
    for (size_t i = 0; i < n_digits; ++i) {
      const char32_t c = take_character();
      const bool is_digit = c >= '0' && c <= '9', is_letter = (c | 32) >= 'a' && (c | 32) <= 'f';
      require(is_digit || is_letter, "expected a hexadecimal number at byte ", at_ - 1);
      value = 16 * value + (is_digit ? c - '0' : (c | 32) - 'a' + 10);
    }
    return value;
  }

  // After the [.
  Ranges character_class() {
    const bool is_negative = take("^");
    Ranges all;
    while (!take("]")) {
      require(at_ < text_.size(), "a ] is missing");
      const Ranges low = class_member();
      if (low.size() == 1 && low[0].first == low[0].last && has("-") && !has("-]")) {
        ++at_;
        const Ranges high = class_member();
        require(high.size() == 1 && high[0].first == high[0].last && high[0].last >= low[0].first,
                "a range ends before it begins, at byte ", at_);
        all.push_back({low[0].first, high[0].last});
        continue;
      }
      all.insert(all.end(), low.begin(), low.end());
    }
    // Taking the complement twice sorts the ranges and removes overlaps.
    all = complement_of(std::move(all));
    return is_negative ? all : complement_of(std::move(all));
  }

  Ranges class_member() {
    if (take("\\")) return escape(true);
    const char32_t c = take_character();
    return {{c, c}};
  }

  std::string_view text_;
  size_t at_ = 0, level_ = 0;
};

// A nondeterministic automaton. Some steps read nothing; the steps of ^ and $ are allowed only at
// the beginning and the end of the text.
class Nfa {
 public:
  // Accepts the texts in which `expression` finds a match.
  explicit Nfa(const Expression& expression) {
    const uint32_t start = add(), found = add();
    const CodePoints any{0, last_code_point};
    states_[start].edges = {{any, start}};
    states_[found].edges = {{any, found}};
    connect(append(expression, start), found, Step::free);
    last_ = found;
  }

  Language determined() const {
    std::vector<Language::State> states;
    std::map<Set, uint32_t> known;
    std::vector<Set> sets;
    auto state_of = [&](Set set) {
      auto [at, is_new] = known.try_emplace(set, uint32_t(sets.size()));
      if (is_new) sets.push_back(std::move(set));
      return at->second;
    };
    state_of(closure({0}, Step::begin));
    for (size_t i = 0; i < sets.size() && i <= Language::most_states; ++i) {
      const Set at = sets[i];
      const Set at_end = closure(at, Step::end);
      Language::State state{{}, std::binary_search(at_end.begin(), at_end.end(), last_)};
      std::map<char32_t, int> bounds;
      for (uint32_t each : at)
        for (const auto& edge : states_[each].edges) {
          bounds[edge.on.first];
          bounds[edge.on.last + 1];
        }
      for (auto bound = bounds.begin(); bound != bounds.end(); ++bound) {
        Set targets;
        for (uint32_t each : at)
          for (const auto& edge : states_[each].edges)
            if (edge.on.first <= bound->first && bound->first <= edge.on.last)
              targets.push_back(edge.to);
        if (targets.empty()) continue;
        const CodePoints on{bound->first, std::next(bound)->first - 1};
        const uint32_t to = state_of(closure(std::move(targets), Step::free));
        auto& edges = state.edges;
        if (!edges.empty() && edges.back().to == to && edges.back().on.last + 1 == on.first)
          edges.back().on.last = on.last;
        else
          edges.push_back({on, to});
      }
      states.push_back(std::move(state));
    }
    return Language(std::move(states));
  }

 private:
  using Set = std::vector<uint32_t>;  // in order
  enum class Step { free, begin, end };
  struct State {
    std::vector<Language::Edge> edges = {};
    std::vector<std::pair<uint32_t, Step>> steps = {};
  };

  uint32_t add() {
    require(states_.size() < most_nfa_states, "it is too large");
    states_.emplace_back();
    return uint32_t(states_.size() - 1);
  }
  void connect(uint32_t from, uint32_t to, Step step) {
    states_[from].steps.emplace_back(to, step);
  }
  uint32_t after(uint32_t from, Step step) {
    const uint32_t to = add();
    connect(from, to, step);
    return to;
  }

  // Returns the state after an expression that is read from the state `from` on.
  uint32_t append(const Expression& expression, uint32_t from) {
    switch (expression.kind) {
      case Expression::set: {
        const uint32_t start = after(from, Step::free), to = add();
        for (const CodePoints& range : expression.ranges)
          states_[start].edges.push_back({range, to});
        return to;
      }
      case Expression::sequence:
        for (const Expression& part : expression.parts) from = append(part, from);
        return from;
      case Expression::choice: {
        const uint32_t to = add();
        for (const Expression& part : expression.parts)
          connect(append(part, after(from, Step::free)), to, Step::free);
        return to;
      }
      case Expression::repeat: {
        const Expression& part = expression.parts[0];
        for (int64_t i = 0; i < expression.least; ++i) from = append(part, from);
        if (expression.most == Grammar::unlimited) {
          const uint32_t loop = after(from, Step::free);
          connect(append(part, loop), loop, Step::free);
          return after(loop, Step::free);
        }
        const uint32_t to = add();
        for (int64_t i = expression.least; i < expression.most; ++i) {
          connect(from, to, Step::free);
          from = append(part, from);
        }
        connect(from, to, Step::free);
        return to;
      }
      case Expression::begin:
        return after(from, Step::begin);
      default:
        return after(from, Step::end);
    }
  }

  // These states and those that can be reached without reading.
  Set closure(Set set, Step allowed) const {
    std::set<uint32_t> all;
    while (!set.empty()) {
      const uint32_t each = set.back();
      set.pop_back();
      if (!all.insert(each).second) continue;
      for (const auto& [to, step] : states_[each].steps)
        if (step == Step::free || step == allowed) set.push_back(to);
    }
    return {all.begin(), all.end()};
  }

  std::vector<State> states_;
  uint32_t last_ = 0;
};

}  // namespace

Language language_of_pattern(std::string_view pattern) {
  PatternReader reader(pattern);
  Language all = Nfa(reader.read()).determined();
  for (const Assertion& each : reader.assertions) {
    Expression from_start{Expression::sequence, {}, {{Expression::begin}, each.expression}};
    const Language asserted = Nfa(from_start).determined();
    all = all & (each.is_negative ? !asserted : asserted);
  }
  return all;
}

}  // namespace redco::text
