// Searches for the layout that moves the least bytes. Tries other placements of one kind of
// parameter at a time, and traces the step again each time. Alpa's search within operators (arXiv
// 2201.12023) solves the same problem for all parameters at once, from rules for each pair of
// operators.

#include "layout_search.h"

#include "../report/in_bytes.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

namespace redco::sharding {

namespace {

// Adds these bytes to each collective: of layouts that move about the same, the one with fewer
// collectives wins.
constexpr double launch_bytes = 4096;
// The operations that a device computes while it sends a byte: an H100 computes 5e14
// multiplications and sends 4.5e11 bytes a second. An operator that every rank repeats costs more
// than most moves.
constexpr double flops_per_byte = 1000;
// A device may hold this share of the model beyond its even part, so that small parameters may stay
// whole. Another tenth costs as much as all moves of the first layout.
constexpr double free_part = 0.05, price_of_part = 5;
// A search stops tracing steps after it has called this many operators: a few seconds.
constexpr int64_t most_calls = 100000;
// A smaller gain does not justify a layout other than the one that follows from the operators.
constexpr double least_gain = 0.005;

struct Measured {
  WatchedForward::Layout layout;
  WatchedForward::StepCost cost;
  double held = 1;   // the share of the model on a device
  double price = 0;  // in bytes
};

double held_by(const std::vector<TracedParameter>& parameters, int64_t n_ranks) {
  double all = 0, held = 0;
  for (const TracedParameter& parameter : parameters) {
    all += double(parameter.given.nbytes());
    held +=
        double(bytes_of_part(parameter.given, parameter.placement.value_or(Placement()), n_ranks));
  }
  return all > 0 ? held / all : 1;
}

std::string text_of(const Measured& measured) {
  std::ostringstream text;
  text << in_bytes(int64_t(measured.cost.bytes)) << " in " << measured.cost.collectives
       << " collectives and holds " << std::lround(100 * measured.held) << " % of the model";
  return text.str();
}

class Search {
 public:
  Search(WatchedForward& forward, std::vector<TracedParameter> decided)
      : forward_(forward), decided_(std::move(decided)) {
    std::map<std::string, int> numbers;
    for (int i = 0; i < int(decided_.size()); ++i) {
      const TracedParameter& parameter = decided_[size_t(i)];
      const std::string name = with_stars(parameter.name) + c10::str(parameter.given.sizes());
      const int number = numbers.try_emplace(name, int(kinds_.size())).first->second;
      if (number == int(kinds_.size())) kinds_.emplace_back();
      if (!parameter.is_by_rule) kinds_[size_t(number)].push_back(i);
      kind_numbers_.push_back(number);
    }
  }

  std::vector<TracedParameter> best() {
    WatchedForward::Layout first = forward_.follow(decided_);
    if (!first.is_complete ||
        (kinds_to_try(first, first.suspects).empty() && small_pairs(first).empty()))
      return std::move(first.parameters);
    std::vector<TracedParameter> otherwise = first.parameters;
    std::optional<Measured> measured = measure(std::move(first));
    if (!measured || measured->cost.bytes == 0) return otherwise;
    best_ = *std::move(measured);
    first_price_ = best_.price;
    keep_streams_whole();
    for (const std::vector<int>& pair : small_pairs(best_.layout))
      if (forward_.n_calls() < most_calls) take({pair, Placement::replicate(), 0});
    while (forward_.n_calls() < most_calls)
      if (!improve(best_.layout.suspects) && !improve(best_.layout.partners)) break;
    return std::move(best_.layout.parameters);
  }

 private:
  double limit() const { return 1.0 / double(forward_.n_ranks()) + free_part; }

  std::optional<Measured> measure(WatchedForward::Layout layout) {
    if (!layout.is_complete) return std::nullopt;
    std::optional<WatchedForward::StepCost> cost = forward_.cost(layout.parameters);
    if (!cost) return std::nullopt;
    Measured result{std::move(layout), *cost};
    result.held = held_by(result.layout.parameters, forward_.n_ranks());
    const double excess = std::max(0.0, result.held - limit());
    result.price =
        cost->bytes + launch_bytes * double(cost->collectives) + cost->flops / flops_per_byte;
    result.price += price_of_part * excess * (first_price_ > 0 ? first_price_ : result.price);
    return result;
  }

  const std::vector<int>& kind_of(int index) const {
    return kinds_[size_t(kind_numbers_[size_t(index)])];
  }

  // Returns pairs of kinds that may be whole beside what is. The sums of a pair may move more than
  // its weights are worth, such as those over the few positions of an MLP mixer.
  std::vector<std::vector<int>> small_pairs(const WatchedForward::Layout& layout) const {
    std::set<std::set<int>> pairs;  // of kinds
    for (const std::set<int>& pair : layout.pairs) {
      std::set<int> kinds;
      for (int index : pair) {
        const TracedParameter& parameter = decided_[size_t(index)];
        if (parameter.given.dim() > 1 && !parameter.adapter)
          kinds.insert(kind_numbers_[size_t(index)]);
      }
      pairs.insert(std::move(kinds));
    }
    std::vector<std::vector<int>> small;
    for (const std::set<int>& pair : pairs) {
      std::vector<int> members;
      for (int kind : pair)
        members.insert(members.end(), kinds_[size_t(kind)].begin(), kinds_[size_t(kind)].end());
      std::vector<TracedParameter> whole = layout.parameters;
      for (int index : members) whole[size_t(index)].placement = Placement::replicate();
      if (!members.empty() && held_by(whole, forward_.n_ranks()) <= limit())
        small.push_back(std::move(members));
    }
    return small;
  }

  // Returns the parameters, by kind, for which another placement may be better: those that make
  // others move, and, if a device holds too much, those that are whole.
  std::vector<std::vector<int>> kinds_to_try(const WatchedForward::Layout& layout,
                                             const std::set<int>& suspects) const {
    const std::vector<TracedParameter>& all = layout.parameters;
    const bool holds_much = held_by(all, forward_.n_ranks()) > limit();
    std::vector<std::vector<int>> kinds;
    std::set<int> numbers;
    for (int i = 0; i < int(all.size()); ++i) {
      const TracedParameter& parameter = all[size_t(i)];
      if (parameter.is_by_rule || parameter.adapter || parameter.given.dim() < 2) continue;
      bool is_whole = !parameter.placement || parameter.placement->is_replicated();
      bool is_tried = suspects.contains(i) || (holds_much && is_whole);
      if (is_tried && numbers.insert(kind_numbers_[size_t(i)]).second) kinds.push_back(kind_of(i));
    }
    return kinds;
  }

  // The three columns of a kernel are not split over two ranks: one would hold two of them.
  bool divides_well(int64_t size) const {
    const int64_t n_ranks = forward_.n_ranks();
    return size % n_ranks == 0 || size >= 8 * n_ranks;
  }

  std::vector<Placement> candidates(int index) const {
    const TracedParameter& parameter = best_.layout.parameters[size_t(index)];
    std::vector<Placement> all;
    if (parameter.given.is_floating_point())
      for (int64_t dim = 0; dim < parameter.given.dim(); ++dim)
        if (divides_well(parameter.given.size(dim))) all.push_back(Placement::shard(dim));
    auto in_views = best_.layout.splits_in_views.find(index);
    if (in_views != best_.layout.splits_in_views.end())
      for (const Placement& placement : in_views->second)
        if (std::ranges::find(all, placement) == all.end()) all.push_back(placement);
    all.push_back(Placement::replicate());  // last, so that equal prices prefer a split
    std::erase(all, parameter.placement.value_or(Placement()));
    return all;
  }

  // Makes the sources of streams whole, if this gains. No change of one kind finds this: a stream
  // stays split while one of its sources is.
  void keep_streams_whole() {
    std::vector<int> whole;
    WatchedForward::Layout layout = best_.layout;
    // Later sources may split no stream once the first one is whole.
    while (layout.is_complete && forward_.n_calls() < most_calls / 2) {
      auto source = std::ranges::find_if(layout.sources_of_streams, [&](int index) {
        return may_be_whole(kind_of(index), whole);
      });
      if (source == layout.sources_of_streams.end()) break;
      const std::vector<int>& kind = kind_of(*source);
      whole.insert(whole.end(), kind.begin(), kind.end());
      layout = forward_.follow(with({whole, Placement::replicate(), 0}));
    }
    if (!whole.empty()) take({whole, Placement::replicate(), 0});
  }

  // Whether a kind is not so much of the model that its share costs more than streams do.
  bool may_be_whole(const std::vector<int>& kind, const std::vector<int>& others) const {
    std::vector<TracedParameter> parameters = best_.layout.parameters;
    for (const std::vector<int>* each : {&kind, &others})
      for (int index : *each) parameters[size_t(index)].placement = Placement::replicate();
    return held_by(parameters, forward_.n_ranks()) <= limit() + free_part;
  }

  struct Change {
    std::vector<int> kind;
    Placement placement;
    double price;  // of the layout with this change
  };

  // Tries changes of these parameters, and returns whether one gained.
  bool improve(const std::set<int>& suspects) {
    bool is_better = false;
    for (const Change& change : promising_changes(suspects)) is_better |= take(change);
    return is_better;
  }

  // Returns the best change of each kind that gains on its own, the largest gains first.
  std::vector<Change> promising_changes(const std::set<int>& suspects) {
    std::vector<Change> changes;
    for (const std::vector<int>& kind : kinds_to_try(best_.layout, suspects)) {
      Change best{kind, {}, (1 - least_gain) * best_.price};
      bool is_better = false;
      for (const Placement& candidate : candidates(kind[0])) {
        if (forward_.n_calls() >= most_calls) break;
        std::optional<Measured> measured = measure(forward_.follow(with({kind, candidate, 0})));
        if (!measured || measured->price >= best.price) continue;
        best.placement = candidate;
        best.price = measured->price;
        is_better = true;
      }
      if (is_better) changes.push_back(std::move(best));
    }
    std::ranges::stable_sort(changes, {}, &Change::price);
    return changes;
  }

  std::vector<TracedParameter> with(const Change& change) const {
    std::vector<TracedParameter> changed = decided_;
    for (int index : change.kind) {
      changed[size_t(index)].placement = change.placement;
      changed[size_t(index)].is_tried = true;
    }
    return changed;
  }

  // Takes a change if it still gains: earlier changes may have used up its gain.
  bool take(const Change& change) {
    std::vector<TracedParameter> changed = with(change);
    std::optional<Measured> measured = measure(forward_.follow(changed));
    if (!measured || measured->price > (1 - least_gain) * best_.price) return false;
    for (int index : change.kind) {
      std::string& reason = measured->layout.parameters[size_t(index)].reason;
      reason = "searched: a step sends " + text_of(*measured) + "; " +
               to_string(best_.layout.parameters[size_t(index)].placement.value_or(Placement())) +
               ": " + text_of(best_);
      changed[size_t(index)].reason = reason;
    }
    best_ = *std::move(measured);
    decided_ = std::move(changed);
    return true;
  }

  WatchedForward& forward_;
  std::vector<TracedParameter> decided_;  // by rules and by this search
  // The parameters of each kind: of all layers alike. Without those that rules decide.
  std::vector<std::vector<int>> kinds_;
  std::vector<int> kind_numbers_;  // by parameter
  Measured best_;
  double first_price_ = 0;
};

}  // namespace

std::vector<TracedParameter> least_moving_layout(WatchedForward& forward,
                                                 std::vector<TracedParameter> decided) {
  return Search(forward, std::move(decided)).best();
}

}  // namespace redco::sharding
