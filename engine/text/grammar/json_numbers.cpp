// Numbers within bounds, digit by digit.

#include "json_numbers.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace redco::text {

namespace {

using Node = Grammar::Node;

constexpr int most_whole_digits = 16, most_fraction_digits = 15;
constexpr int64_t most_units = 10000;

char digit_at(const std::string& digits, int at) {
  return at < int(digits.size()) ? digits[size_t(at)] : '0';
}

// Numbers from 0 on. A state is everything that the digits so far imply for the digits that follow.
class Magnitudes {
 public:
  Magnitudes(Grammar& grammar, const Numbers& numbers, Numbers::Bound least,
             std::optional<Numbers::Bound> most)
      : g_(grammar), n_(numbers), least_(std::move(least)), most_(std::move(most)) {}

  Node texts() {
    std::vector<Node> options;
    const int limit = n_.is_whole ? most_whole_digits : most_fraction_digits;
    const int low = int(least_.value.whole.size());
    const int high = most_ ? int(most_->value.whole.size()) : limit + 1;
    for (int size = low; size <= std::min(limit, high); ++size)
      options.push_back(whole({size, 0, size == low, most_ && size == high, 0}));
    return g_.choice(std::move(options));
  }

 private:
  struct State {
    int size;                // of the whole part
    int at;                  // digits of the whole part so far, or of the fraction
    bool is_least, is_most;  // whether they are those of the bound
    int64_t rest;            // of the division by the unit
    auto operator<=>(const State&) const = default;
  };
  using Edges = std::vector<std::pair<std::string, Node>>;  // digits and what follows them

  // The next digits; `next` returns the node after each digit.
  template <class Next>
  Edges edges(const State& state, char first, char last, const Next& next) {
    Edges all;
    for (char digit = first; digit <= last; ++digit) {
      State after = state;
      ++after.at;
      after.is_least &= digit == first;
      after.is_most &= digit == last;
      if (n_.unit != 0) after.rest = (10 * state.rest + (digit - '0')) % n_.unit;
      const Node node = next(after);
      auto same = std::find_if(all.begin(), all.end(), [&](auto& e) { return e.second == node; });
      if (same == all.end())
        all.push_back({std::string(1, digit), node});
      else
        same->first += digit;
    }
    return all;
  }

  // Equal states have one node.
  Node node_of(const Edges& edges, bool may_end, Node fraction) {
    auto [found, is_new] = known_.try_emplace({edges, may_end, fraction}, 0);
    if (!is_new) return found->second;
    std::vector<Node> options;
    for (const auto& [digits, next] : edges) {
      Grammar::Bytes set;
      for (char digit : digits) set.set(size_t(digit));
      options.push_back(g_.sequence({g_.bytes(set), next}));
    }
    if (may_end) options.push_back(g_.empty());
    if (fraction != no_fraction) options.push_back(g_.sequence({g_.literal("."), fraction}));
    return found->second = g_.choice(std::move(options));
  }

  Node whole(State state) {
    if (!state.is_least && !state.is_most && n_.is_whole && state.at > 0)
      state = {state.size - state.at + 1, 1, false, false, state.rest};  // only what is left counts
    auto [found, is_new] = states_.try_emplace({state, false}, 0);
    if (!is_new) return found->second;
    Node node;
    if (state.at == state.size) {
      const State start{state.size, 0, state.is_least, state.is_most, state.rest};
      node = node_of({}, may_end(start), most_fraction(state) > 0 ? fraction(start) : no_fraction);
    } else {
      const char least = state.at == 0 && state.size > 1 ? '1' : '0';
      const char first = state.is_least ? digit_at(least_.value.whole, state.at) : least;
      const char last = state.is_most ? digit_at(most_->value.whole, state.at) : '9';
      node = node_of(edges(state, first, last, [&](const State& next) { return whole(next); }),
                     false, no_fraction);
    }
    return states_[{state, false}] = node;
  }

  int most_fraction(const State& state) const {
    if (n_.is_whole) return 0;
    return std::min(most_fraction_digits - state.size,
                    n_.unit != 0 ? n_.scale : most_fraction_digits);
  }

  Node fraction(const State& state) {
    auto [found, is_new] = states_.try_emplace({state, true}, 0);
    if (!is_new) return found->second;
    Edges next;
    if (state.at < most_fraction(state)) {
      const char first = state.is_least ? digit_at(least_.value.fraction, state.at) : '0';
      const char last = state.is_most ? digit_at(most_->value.fraction, state.at) : '9';
      next = edges(state, first, last, [&](const State& after) { return fraction(after); });
    }
    const Node node = node_of(next, state.at > 0 && may_end(state), no_fraction);
    return states_[{state, true}] = node;
  }

  // Whether the number is complete with this fraction.
  bool may_end(const State& state) const {
    auto is_over = [&](const Numbers::Bound& bound) {  // no further digits, but zeros
      return int(bound.value.fraction.size()) <= state.at;
    };
    if (state.is_least && (!is_over(least_) || least_.is_exclusive)) return false;
    if (state.is_most && is_over(*most_) && most_->is_exclusive) return false;
    if (n_.unit == 0) return true;
    int64_t rest = state.rest;
    for (int i = state.at; i < n_.scale; ++i) rest = rest * 10 % n_.unit;
    return rest == 0;
  }

  static constexpr Node no_fraction = UINT32_MAX;

  Grammar& g_;
  const Numbers& n_;
  Numbers::Bound least_;
  std::optional<Numbers::Bound> most_;
  std::map<std::pair<State, bool>, Node> states_;  // by state, and whether in the fraction
  std::map<std::tuple<Edges, bool, Node>, Node> known_;
};

}  // namespace

std::optional<Decimal> Decimal::of(const Json& value) {
  char text[512];
  char* end = nullptr;
  if (const auto* whole = value.get<int64_t>())
    end = std::to_chars(text, text + sizeof text, *whole).ptr;
  else if (const auto* number = value.get<double>())
    end = std::to_chars(text, text + sizeof text, *number, std::chars_format::fixed).ptr;
  if (end == nullptr) return std::nullopt;
  std::string_view digits(text, size_t(end - text));
  Decimal result;
  if (digits.starts_with('-')) {
    result.is_negative = true;
    digits.remove_prefix(1);
  }
  const size_t point = std::min(digits.find('.'), digits.size());
  result.whole = digits.substr(0, point);
  if (point < digits.size()) result.fraction = digits.substr(point + 1);
  result.fraction.resize(result.fraction.find_last_not_of('0') + 1);
  if (result.is_zero()) result.is_negative = false;
  return result;
}

int Decimal::compare(const Decimal& other) const {
  if (is_negative != other.is_negative) return is_negative ? -1 : 1;
  const int sign = is_negative ? -1 : 1;
  if (whole.size() != other.whole.size()) return whole.size() < other.whole.size() ? -sign : sign;
  if (const int order = whole.compare(other.whole)) return order < 0 ? -sign : sign;
  const int order = fraction.compare(other.fraction);
  return order == 0 ? 0 : order < 0 ? -sign : sign;
}

void Numbers::raise_least(const Bound& bound) {
  const int order = least ? bound.value.compare(least->value) : 1;
  if (order > 0 || (order == 0 && bound.is_exclusive)) least = bound;
}

void Numbers::lower_most(const Bound& bound) {
  const int order = most ? bound.value.compare(most->value) : -1;
  if (order < 0 || (order == 0 && bound.is_exclusive)) most = bound;
}

bool Numbers::keep_multiples(const Decimal& of) {
  const std::string digits = of.whole + of.fraction;
  int64_t other = 0;
  if (std::from_chars(digits.data(), digits.data() + digits.size(), other).ec != std::errc())
    return false;
  int other_scale = int(of.fraction.size());
  if (unit == 0) std::tie(unit, scale) = std::pair(other, other_scale);
  for (; scale < other_scale; ++scale) unit *= 10;
  for (; other_scale < scale; ++other_scale) other *= 10;
  if (unit > most_units * most_units || other > most_units * most_units) return false;
  unit = std::lcm(unit, other);
  for (; scale > 0 && unit % 10 == 0; --scale) unit /= 10;
  return unit <= most_units && scale <= most_fraction_digits;
}

bool Numbers::contains(const Decimal& value) const {
  if (is_whole && !value.fraction.empty()) return false;
  auto is_out = [&](const std::optional<Bound>& bound, int sign) {
    if (!bound) return false;
    const int order = sign * value.compare(bound->value);
    return order < 0 || (order == 0 && bound->is_exclusive);
  };
  if (is_out(least, 1) || is_out(most, -1)) return false;
  if (unit == 0) return true;
  if (int(value.fraction.size()) > scale) return false;
  int64_t rest = 0;
  for (char digit : value.whole + value.fraction) rest = (10 * rest + (digit - '0')) % unit;
  for (int i = int(value.fraction.size()); i < scale; ++i) rest = rest * 10 % unit;
  return rest == 0;
}

Node Numbers::texts(Grammar& grammar) const {
  const Bound zero{{}, false}, after_zero{{}, true};
  std::vector<Node> options;
  const bool is_below_zero = most && most->value.is_negative;
  if (!is_below_zero) {
    const bool is_above_zero = least && !least->value.is_negative;
    options.push_back(Magnitudes(grammar, *this, is_above_zero ? *least : zero, most).texts());
  }
  if (!least || least->value.is_negative) {
    auto positive = [](Bound bound) {
      bound.value.is_negative = false;
      return bound;
    };
    const std::optional<Bound> far = least ? std::optional(positive(*least)) : std::nullopt;
    const Bound near = is_below_zero ? positive(*most) : after_zero;
    options.push_back(
        grammar.sequence({grammar.literal("-"), Magnitudes(grammar, *this, near, far).texts()}));
  }
  return grammar.choice(std::move(options));
}

}  // namespace redco::text
