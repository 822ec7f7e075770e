// Regular sets of texts.

#include "language.h"

#include "../utf8.h"
#include "grammar.h"

#include <redco/error.h>

#include <algorithm>
#include <map>
#include <utility>

namespace redco::text {

namespace {

constexpr uint32_t nowhere = UINT32_MAX;

const CodePoints any{0, last_code_point};

// Calls visit(range, target of a, target of b) for each range of characters that both states read.
template <class Visit>
void meet(const Language::State& a, const Language::State& b, const Visit& visit) {
  for (size_t i = 0, j = 0; i < a.edges.size() && j < b.edges.size();) {
    const auto &left = a.edges[i], &right = b.edges[j];
    const CodePoints both{std::max(left.on.first, right.on.first),
                          std::min(left.on.last, right.on.last)};
    if (both.first <= both.last) visit(both, left.to, right.to);
    left.on.last < right.on.last ? ++i : ++j;
  }
}

}  // namespace

std::vector<CodePoints> complement_of(std::vector<CodePoints> ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::vector<CodePoints> gaps;
  char32_t next = 0;
  for (const auto& range : ranges) {
    if (range.first > next) gaps.push_back({next, range.first - 1});
    next = std::max<char32_t>(next, range.last + 1);
  }
  if (next <= last_code_point) gaps.push_back({next, last_code_point});
  return gaps;
}

Language::Language(std::vector<State> states) : states_(std::move(states)) {
  require(states_.size() <= most_states, "it is too large: it needs more than ", most_states,
          " states");
}

Language Language::of_all() { return Language({{{{any, 0}}, true}}); }

Language Language::of_texts(const std::vector<std::string>& texts) {
  std::vector<State> states(1);
  for (const std::string& text : texts) {
    uint32_t at = 0;
    for (size_t i = 0; i < text.size();) {
      const CodePoint c = code_point_at(text, i);
      i += c.size;
      auto& edges = states[at].edges;
      auto place = std::find_if(edges.begin(), edges.end(),
                                [&](const Edge& edge) { return edge.on.first >= c.value; });
      if (place == edges.end() || place->on.first != c.value)
        place = edges.insert(place, {{c.value, c.value}, uint32_t(states.size())});
      at = place->to;
      if (at == states.size()) states.emplace_back();
    }
    states[at].is_end = true;
  }
  return Language(std::move(states));
}

Language Language::of_lengths(int64_t least, int64_t most) {
  const bool is_limited = most != Grammar::unlimited;
  std::vector<State> states(size_t(is_limited ? most : least) + 1);
  for (size_t i = 0; i < states.size(); ++i) {
    states[i].is_end = int64_t(i) >= least;
    if (i + 1 < states.size()) states[i].edges = {{any, uint32_t(i + 1)}};
  }
  if (!is_limited) states.back().edges = {{any, uint32_t(states.size() - 1)}};
  return Language(std::move(states));
}

Language Language::operator&(const Language& other) const {
  std::vector<State> states;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> known;
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  auto state_of = [&](uint32_t a, uint32_t b) {
    auto [found, is_new] = known.try_emplace({a, b}, uint32_t(pairs.size()));
    if (is_new) pairs.emplace_back(a, b);
    return found->second;
  };
  state_of(0, 0);
  for (size_t i = 0; i < pairs.size() && i <= most_states; ++i) {
    const State &a = states_[pairs[i].first], &b = other.states_[pairs[i].second];
    State both{{}, a.is_end && b.is_end};
    meet(a, b, [&](CodePoints on, uint32_t to_a, uint32_t to_b) {
      both.edges.push_back({on, state_of(to_a, to_b)});
    });
    states.push_back(std::move(both));
  }
  return Language(std::move(states));
}

Language Language::operator!() const {
  std::vector<State> states = states_;
  const auto others = uint32_t(states.size());  // the state after a character without an edge
  for (State& state : states) {
    std::vector<CodePoints> read;
    for (const Edge& edge : state.edges) read.push_back(edge.on);
    for (const CodePoints& gap : complement_of(std::move(read)))
      state.edges.push_back({gap, others});
    std::sort(state.edges.begin(), state.edges.end(),
              [](const Edge& a, const Edge& b) { return a.on < b.on; });
    state.is_end = !state.is_end;
  }
  states.push_back({{{any, others}}, true});
  return Language(std::move(states));
}

bool Language::contains(std::string_view text) const {
  uint32_t at = 0;
  for (size_t i = 0; i < text.size() && at != nowhere;) {
    const CodePoint c = code_point_at(text, i);
    i += c.size;
    const auto& edges = states_[at].edges;
    const auto found = std::find_if(edges.begin(), edges.end(),
                                    [&](const Edge& edge) { return edge.on.last >= c.value; });
    at = found != edges.end() && found->on.first <= c.value ? found->to : nowhere;
  }
  return at != nowhere && states_[at].is_end;
}

}  // namespace redco::text
