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
// whole. Another hundredth of the model costs a tenth of what the best layout without it costs.
constexpr double free_part = 0.05, price_of_model = 10;
// A search stops tracing steps after it has called this many operators: a few seconds.
constexpr int64_t most_calls = 100000;
// Fewer collectives are worth at most this factor of the moves.
constexpr double most_moves = 1.05;
// A smaller gain does not justify a layout other than the one that follows from the operators.
constexpr double least_gain = 0.005;

struct Measured {
  WatchedForward::Layout layout;
  WatchedForward::StepCost cost;
  double held = 1;   // the share of the model on a device
  double moves = 0;  // bytes, and what each rank computes, as bytes
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
    price_within_limit_ = price_of_step(*measured);
    keep(*std::move(measured));
    keep_streams_whole();
    for (const std::vector<int>& pair : small_pairs(best_.layout))
      if (forward_.n_calls() < most_calls) take({pair, Placement::replicate()});
    while (forward_.n_calls() < most_calls)
      if (!improve(best_.layout.suspects, Allowed::all) &&
          !improve(best_.layout.partners, Allowed::splits) && !undo())
        break;
    return std::move(best_.layout.parameters);
  }

 private:
  enum class Allowed { all, splits };

  double limit() const { return 1.0 / double(forward_.n_ranks()) + free_part; }

  std::optional<Measured> measure(WatchedForward::Layout layout) {
    if (!layout.is_complete) return std::nullopt;
    std::optional<WatchedForward::StepCost> cost = forward_.cost(layout.parameters);
    if (!cost) return std::nullopt;
    Measured result{std::move(layout), *cost};
    result.held = held_by(result.layout.parameters, forward_.n_ranks());
    result.moves = cost->bytes + cost->flops / flops_per_byte;
    return result;
  }

  // The prices of a layout, in bytes: of what it sends and computes, and of what it holds, too.
  static double price_of_step(const Measured& measured) {
    return measured.moves + launch_bytes * double(measured.cost.collectives);
  }
  double price_of(const Measured& measured) const {
    const double excess = std::max(0.0, measured.held - limit());
    return price_of_step(measured) + price_of_model * excess * price_within_limit_;
  }

  void keep(Measured measured) {
    best_ = std::move(measured);
    if (best_.held <= limit())
      price_within_limit_ = std::min(price_within_limit_, price_of_step(best_));
  }

  const std::vector<int>& kind_of(int index) const {
    return kinds_[size_t(kind_numbers_[size_t(index)])];
  }

  // Returns the weights of all kinds that each set has a parameter of.
  std::vector<std::vector<int>> weights_of(const std::set<std::set<int>>& sets) const {
    std::set<std::set<int>> all;  // of kinds
    for (const std::set<int>& parameters : sets) {
      std::set<int> kinds;
      for (int index : parameters) {
        const TracedParameter& parameter = decided_[size_t(index)];
        if (parameter.given.dim() > 1 && !parameter.adapter)
          kinds.insert(kind_numbers_[size_t(index)]);
      }
      all.insert(std::move(kinds));
    }
    std::vector<std::vector<int>> weights;
    for (const std::set<int>& kinds : all) {
      std::vector<int>& members = weights.emplace_back();
      for (int kind : kinds)
        members.insert(members.end(), kinds_[size_t(kind)].begin(), kinds_[size_t(kind)].end());
      if (members.empty()) weights.pop_back();
    }
    return weights;
  }

  // Returns pairs that are a small part of the model. Their sums may move more than the weights are
  // worth, such as those over the few positions of an MLP mixer.
  std::vector<std::vector<int>> small_pairs(const WatchedForward::Layout& layout) const {
    std::vector<std::vector<int>> pairs = weights_of(layout.pairs);
    const double held = held_by(layout.parameters, forward_.n_ranks());
    std::erase_if(pairs, [&](const std::vector<int>& members) {
      std::vector<TracedParameter> whole = layout.parameters;
      for (int index : members) whole[size_t(index)].placement = Placement::replicate();
      return held_by(whole, forward_.n_ranks()) - held > free_part;
    });
    return pairs;
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

  std::vector<Placement> candidates(int index, Allowed allowed) const {
    const TracedParameter& parameter = best_.layout.parameters[size_t(index)];
    std::vector<Placement> all;
    if (parameter.given.is_floating_point())
      for (int64_t dim = 0; dim < parameter.given.dim(); ++dim)
        if (divides_well(parameter.given.size(dim))) all.push_back(Placement::shard(dim));
    auto in_views = best_.layout.splits_in_views.find(index);
    if (in_views != best_.layout.splits_in_views.end())
      for (const Placement& placement : in_views->second)
        if (std::ranges::find(all, placement) == all.end()) all.push_back(placement);
    if (allowed == Allowed::all)
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
      layout = forward_.follow(with({whole, Placement::replicate()}));
    }
    if (!whole.empty()) take({whole, Placement::replicate()});
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
    std::optional<Placement> placement;  // nullopt: what follows from the operators
    double price = 0;                    // of the layout with this change
  };

  // Tries changes of these parameters, and returns whether one gained.
  bool improve(const std::set<int>& suspects, Allowed allowed) {
    bool is_better = false;
    for (const Change& change : promising_changes(suspects, allowed)) is_better |= take(change);
    return is_better;
  }

  // Returns the best change of each kind that gains on its own, the largest gains first. Parameters
  // that split one tensor may also become whole together.
  std::vector<Change> promising_changes(const std::set<int>& suspects, Allowed allowed) {
    std::vector<Change> changes;
    for (const std::vector<int>& kind : kinds_to_try(best_.layout, suspects))
      add_best(changes, kind, candidates(kind[0], allowed));
    if (allowed == Allowed::all)
      for (const std::vector<int>& weights : weights_of(best_.layout.moved_together))
        add_best(changes, weights, {Placement::replicate()});
    std::ranges::stable_sort(changes, {}, &Change::price);
    return changes;
  }

  void add_best(std::vector<Change>& changes, const std::vector<int>& kind,
                const std::vector<Placement>& candidates) {
    Change best{kind, {}, (1 - least_gain) * price_of(best_)};
    for (const Placement& candidate : candidates) {
      if (forward_.n_calls() >= most_calls) break;
      std::optional<Measured> measured = measure(forward_.follow(with({kind, candidate})));
      if (!measured || !gains(*measured, best.price)) continue;
      best.placement = candidate;
      best.price = price_of(*measured);
    }
    if (best.placement) changes.push_back(std::move(best));
  }

  std::vector<TracedParameter> with(const Change& change) const {
    std::vector<TracedParameter> changed = decided_;
    for (int index : change.kind) {
      changed[size_t(index)].placement = change.placement;
      changed[size_t(index)].is_tried = change.placement.has_value();
    }
    return changed;
  }

  // Whether a layout costs less than this price. One that only has fewer collectives may not send
  // much more.
  bool gains(const Measured& measured, double price) const {
    if (measured.moves > most_moves * best_.moves && measured.held >= best_.held) return false;
    return price_of(measured) < price;
  }

  // Takes a change if it still gains: earlier changes may have used up its gain.
  bool take(const Change& change) {
    std::vector<TracedParameter> changed = with(change);
    std::optional<Measured> measured = measure(forward_.follow(changed));
    if (!measured || !gains(*measured, (1 - least_gain) * price_of(best_))) return false;
    if (change.placement) {
      taken_.push_back(change.kind);
      for (int index : change.kind) {
        std::string& reason = measured->layout.parameters[size_t(index)].reason;
        reason = "searched: a step sends " + text_of(*measured) + "; " +
                 to_string(best_.layout.parameters[size_t(index)].placement.value_or(Placement())) +
                 ": " + text_of(best_);
        changed[size_t(index)].reason = reason;
      }
    }
    keep(*std::move(measured));
    decided_ = std::move(changed);
    return true;
  }

  // Takes back changes that later ones have made worse, and returns whether it gained.
  bool undo() {
    bool is_better = false;
    for (const std::vector<int>& kind : std::exchange(taken_, {}))
      if (forward_.n_calls() < most_calls) is_better |= take({kind, std::nullopt});
    return is_better;
  }

  WatchedForward& forward_;
  std::vector<TracedParameter> decided_;  // by rules and by this search
  // The parameters of each kind: of all layers alike. Without those that rules decide.
  std::vector<std::vector<int>> kinds_;
  std::vector<int> kind_numbers_;  // by parameter
  Measured best_;
  double price_within_limit_ = 0;        // of a step: the least, or that of the first layout
  std::vector<std::vector<int>> taken_;  // the parameters of each change
};

}  // namespace

std::vector<TracedParameter> least_moving_layout(WatchedForward& forward,
                                                 std::vector<TracedParameter> decided) {
  return Search(forward, std::move(decided)).best();
}

}  // namespace redco::sharding
