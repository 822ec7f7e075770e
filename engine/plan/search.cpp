// Plans the step of a Trainer in each possible layout.

#include "cost/allocator_model.h"
#include "cost/cost_model.h"
#include "cost/peak.h"
#include "cost/pipeline_time.h"
#include "cost/timeline.h"
#include "layouts.h"
#include "objective.h"
#include "trace/stage_traces.h"

#include <redco/error.h>
#include <redco/plan.h>
#include <redco/sharding.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <iomanip>
#include <map>
#include <sstream>
#include <tuple>
#include <utility>

namespace redco {

using namespace plan;

namespace {

using clock = std::chrono::steady_clock;

// "1.50 GiB"
std::string bytes_text(int64_t bytes, bool rounds_up = false) {
  constexpr std::array units = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = double(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < units.size()) value /= 1024, ++unit;
  const int n_digits = unit == 0 ? 0 : value < 10 ? 2 : 1;
  const double scale = std::pow(10.0, n_digits);
  if (rounds_up) value = std::ceil(value * scale) / scale;
  std::ostringstream text;
  text << std::fixed << std::setprecision(n_digits) << value << " " << units[unit];
  return text.str();
}

class Search {
 public:
  Search(const TrainerOptions& trainer, const Dataset& examples, const ClusterSpec& cluster,
         const PlanOptions& options)
      : program_{trainer, examples},
        cluster_(cluster),
        options_(options),
        cost_(cluster),
        whole_(whole_bytes(trainer)) {
    check_prices(options.objective, cluster);
    result_.memory = cluster.device().memory;
    result_.notes = cluster.notes();
  }

  StepPlan run() {
    PlannedLayout asked = asked_layout(options_, program_.options, cluster_);
    result_.global_batch_size = global_batch_of(options_, program_.options, asked);
    std::vector<PlannedLayout> others =
        other_layouts(asked, result_.global_batch_size, options_, program_.options, cluster_);
    if (others.empty() && !asked.why.empty()) fail("plan: ", asked.why);
    std::vector<PlannedLayout> possible = others;
    if (asked.why.empty()) possible.insert(possible.begin(), asked);
    std::vector<PlannedLayout>& done = done_;
    if (options_.has_asked) done.push_back(asked.why.empty() ? planned(asked, true) : asked);
    // Other forms of the asked layout may fit or need less memory.
    bool needs_less = options_.objective == PlanObjective::memory;
    if (asked.why.empty() && (done.empty() || !done.front().fits || needs_less)) {
      asked.is_asked = false;
      others.insert(others.begin(), asked);
    }
    for (PlannedLayout& candidate : others) {
      std::chrono::duration<double> used = clock::now() - from_;
      bool has_one = std::ranges::any_of(done, &PlannedLayout::is_planned);
      if (used.count() > options_.timeout && has_one) {
        candidate.why = "not tried: the time was over";
        ++n_left_;
        continue;
      }
      if (is_too_slow(least_seconds(candidate))) {
        ++n_slow_;
        continue;
      }
      for (PlannedLayout& form : forms(candidate)) {
        bool is_done = std::ranges::any_of(
            done, [&](const PlannedLayout& each) { return is_same(each, form); });
        if (!is_done) done.push_back(std::move(form));
      }
    }
    if (n_left_ > 0)
      result_.notes.push_back(std::to_string(n_left_) +
                              " layouts were not tried: the time was over (timeout)");
    if (n_slow_ > 0)
      result_.notes.push_back(std::to_string(n_slow_) +
                              " layouts were not tried: they are slower than those shown");
    if (std::ranges::none_of(done, &PlannedLayout::fits)) add_least(std::move(possible));
    mark_least(done);
    sort_by(options_.objective, done);
    int64_t n = 0;
    for (PlannedLayout& layout : done)
      if (layout.is_asked || n++ < options_.n_layouts || layout.is_least)
        result_.layouts.push_back(std::move(layout));
    if (!result_.layouts.front().fits) result_.why = nothing_fits();
    return std::move(result_);
  }

 private:
  // Describes the layout that needs the least memory, its largest part, and how many devices the
  // states need.
  std::string nothing_fits() const {
    std::ostringstream text;
    text << "no layout of " << cluster_.n_devices() << " devices fits in "
         << bytes_text(result_.memory);
    auto least = std::ranges::find_if(result_.layouts, &PlannedLayout::is_planned);
    if (least != result_.layouts.end()) {
      text << "; devices of " << bytes_text(memory_for(*least), /*rounds_up=*/true)
           << " would do, with n_model_shards = " << least->n_model_shards
           << ", zero = " << least->zero
           << ", per_device_batch_size = " << least->per_device_batch_size
           << (least->recompute == Recompute::none
                   ? ""
                   : std::string(" and recompute = \"") + name_of(least->recompute) + "\"")
           << ", which " << least->why;
      if (cluster_.device().kind == DeviceFacts::gpu && !program_.options.offload_optimizer)
        text << "; offload_optimizer = true moves "
             << bytes_text(least->memory.at(name_of(MemoryKind::states)))
             << " or more of that to the memory of the host";
    }
    text << "; parameters, gradients and optimizer states are " << bytes_text(result_.states)
         << ": at least " << result_.least_devices << " such devices must share them";
    return text.str();
  }

  // If nothing fits: finds the layout that needs the least memory, also among layouts whose states
  // alone do not fit. Ignores the timeout, so that each search finds the same layout.
  void add_least(std::vector<PlannedLayout> layouts) {
    constexpr int64_t most_of_kind = 3;
    for (PlannedLayout& layout : layouts) layout.states = least_states(whole_, layout);
    std::ranges::stable_sort(layouts, {}, &PlannedLayout::states);
    std::map<Kind, int64_t> n_of_kind;
    std::optional<PlannedLayout> least;
    auto look_at = [&](const PlannedLayout& form) {
      PlannedLayout now = planned(form, true);
      if (!least || now.total < least->total) least = now;
    };
    for (const PlannedLayout& layout : layouts) {
      if (least && layout.states >= least->total) break;
      if (n_of_kind[kind_of(layout)]++ >= most_of_kind) continue;
      PlannedLayout smallest = layout;
      if (!program_.options.train_step_fn) {
        look_at(layout);
        smallest.n_accumulated *= std::exchange(smallest.per_device_batch_size, 1);
      }
      look_at(smallest);
      if (!may_recompute_more(layout)) continue;
      smallest.recompute = Recompute::blocks;
      look_at(smallest);
    }
    auto is_least = [&](const PlannedLayout& each) {
      return each.is_planned && is_same(each, *least);
    };
    if (least && std::ranges::none_of(done_, is_least)) {
      std::erase_if(done_, [&](const PlannedLayout& each) {
        return !each.is_asked && !each.is_planned && is_same(each, *least);
      });
      least->is_asked = false;
      done_.push_back(*least);
    }
    result_.states = whole_.sum();
    result_.least_devices = (result_.states + most_bytes() - 1) / most_bytes();
  }

  // Returns the memory of a device that a step may use.
  int64_t most_bytes() const {
    return std::max<int64_t>(1, int64_t(double(result_.memory) * (1 - options_.margin)));
  }

  // Returns the memory that a device must have so that the layout may use all that it needs.
  int64_t memory_for(const PlannedLayout& layout) const {
    return int64_t(std::ceil(double(layout.total + 1) / (1 - options_.margin)));
  }

  // Returns the layout with a smaller batch or recomputed blocks, if that makes it fit. Returns all
  // forms if the objective is less memory.
  std::vector<PlannedLayout> forms(const PlannedLayout& layout) {
    PlannedLayout first = best_batch(layout);
    bool is_as_given = first.per_device_batch_size == layout.per_device_batch_size;
    bool needs_less = options_.objective == PlanObjective::memory || !first.fits || !is_as_given;
    if (!may_recompute_more(layout) || !needs_less || !first.is_planned ||
        is_too_slow(first.seconds))
      return {first};
    std::vector<PlannedLayout> all = {first};
    PlannedLayout best = first;
    // What does not fit with all blocks computed again does not fit with less either.
    bool may_fit = true;
    for (Recompute recompute : {Recompute::blocks, Recompute::selective}) {
      if (recompute <= layout.recompute) continue;
      if (!may_fit && options_.objective != PlanObjective::memory) continue;
      PlannedLayout again = layout;
      again.recompute = recompute;
      again = best_batch(again);
      may_fit = again.fits;
      all.push_back(again);
      bool is_better = again.fits && (!best.fits || again.seconds < best.seconds);
      if (!again.fits && !best.fits) is_better = again.total < best.total;
      if (is_better) best = again;
    }
    if (options_.objective == PlanObjective::memory) return all;
    return {best};
  }

  bool may_recompute_more(const PlannedLayout& layout) const {
    return has_blocks_ && options_.tries_recompute && layout.recompute != Recompute::blocks;
  }

  // Whether enough faster layouts are known. A form that needs less memory than its layout, by a
  // smaller batch or recomputation, takes no less time.
  bool is_too_slow(double seconds) const {
    if (options_.objective == PlanObjective::memory) return false;
    return std::ranges::count_if(done_, [&](const PlannedLayout& each) {
             return each.fits && !each.is_asked && each.seconds < seconds;
           }) >= options_.n_layouts;
  }

  // The facts that decide which operators a device computes.
  using Kind = std::tuple<int64_t, bool, c10::ScalarType>;
  static Kind kind_of(const PlannedLayout& layout) {
    return {layout.n_model_shards, layout.sequence_parallel, layout.compute_dtype};
  }

  // A lower bound of the time: ZeRO's levels change what a step sends, but hardly what it computes.
  double least_seconds(const PlannedLayout& layout) const {
    constexpr double without_updates = 0.9;
    auto found = busy_.find(kind_of(layout));
    return found == busy_.end() ? 0 : without_updates * found->second;
  }

  PlannedLayout best_batch(const PlannedLayout& layout) {
    PlannedLayout first = planned(layout), now = first;
    while (now.is_planned && !now.fits && !is_too_slow(now.seconds) &&
           !program_.options.train_step_fn) {
      // The memory that does not depend on the batch. It is a lower bound, so the search skips no
      // batch that fits.
      int64_t fixed = now.reserved;
      for (MemoryKind kind : {MemoryKind::parameters, MemoryKind::gradients, MemoryKind::states})
        fixed += now.memory.at(name_of(kind));
      if (fixed >= most_bytes()) break;
      double share = double(most_bytes() - fixed) / double(now.total - fixed);
      auto smaller = with_smaller_batch(
          now, std::max<int64_t>(1, int64_t(share * double(now.per_device_batch_size))));
      if (!smaller) break;
      now = planned(*smaller);
    }
    return now.fits ? now : first;
  }

  PlannedLayout planned(PlannedLayout layout, bool even_if_states_do_not_fit = false) {
    layout.why.clear();
    layout.states = least_states(whole_, layout);
    if (layout.states > most_bytes() && !even_if_states_do_not_fit) {
      layout.why =
          "parameters, gradients and optimizer states alone need " + bytes_text(layout.states);
      return layout;
    }
    const auto done = std::ranges::find_if(
        done_, [&](const PlannedLayout& each) { return each.is_planned && is_same(each, layout); });
    if (done != done_.end()) {
      const bool is_asked = std::exchange(layout, *done).is_asked;
      layout.is_asked = is_asked;
      return layout;
    }
    if (auto known = like_zero1(layout)) return *known;
    auto& decisions = decisions_[layout.n_model_shards];
    TracedProgram program = program_;
    if (!decisions.empty()) program.options.params_sharding_rules = rules_of(decisions);
    program.options.compute_dtype = layout.compute_dtype;
    const TracedLayout asked{
        .mesh = {.zero = layout.zero_group,
                 .model = layout.n_model_shards,
                 .replicated = layout.n_copies / layout.zero_group / layout.n_expert_shards,
                 .context = layout.n_context_shards,
                 .experts = layout.n_expert_shards,
                 .stages = layout.n_pipeline_stages,
                 .chunks = layout.n_chunks_per_stage},
        .library = cluster_.device().kind == DeviceFacts::cpu ? Library::gloo : Library::nccl,
        .zero = layout.zero,
        .sequence_parallel = layout.sequence_parallel,
        .recompute = layout.recompute,
        .per_device_batch_size = layout.per_device_batch_size,
        .n_accumulated = layout.n_accumulated};
    const std::vector<TracedStage> stages = trace_stages(program, asked);
    ++result_.n_traced;
    const StepTrace& first = stages.front().trace;
    if (decisions.empty()) decisions = first.decisions;
    result_.n_parameters = first.n_parameters;
    has_blocks_ = first.has_blocks;
    layout.is_planned = true;
    layout.notes.clear();
    add_whole_weights(layout, decisions);
    const TracedStage& largest = add_memory(layout, stages);
    layout.stage = largest.stage;
    layout.collectives = largest.trace.collectives;
    add(layout.collectives, largest.trace.of_micro_batch,
        layout.n_accumulated - n_traced_of(asked));
    layout.fits = layout.total <= most_bytes();
    if (!layout.fits)
      layout.why = "needs " + bytes_text(layout.total) + ", of which " + largest_kind(layout);
    add_time(layout, step_seconds(cost_, stages, n_traced_of(asked), layout.n_chunks_per_stage,
                                  layout.n_accumulated));
    if (options_.has_timelines) layout.timeline = timeline_of(cost_, largest.trace.step.log);
    add_notes(layout, largest.trace.step);
    if (layout.zero == 1) of_zero1_.push_back(layout);
    return layout;
  }

  // With one micro-batch, ZeRO 2 works like ZeRO 1.
  std::optional<PlannedLayout> like_zero1(const PlannedLayout& layout) const {
    if (layout.zero != 2 || layout.n_accumulated > 1) return std::nullopt;
    PlannedLayout same = layout;
    same.zero = 1;
    auto found = std::ranges::find_if(
        of_zero1_, [&](const PlannedLayout& each) { return is_same(each, same); });
    if (found == of_zero1_.end()) return std::nullopt;
    same = *found;
    same.zero = 2;
    same.is_asked = layout.is_asked;
    same.states = layout.states;
    return same;
  }

  // Adds the memory of the stage that needs the most, and returns that stage.
  const TracedStage& add_memory(PlannedLayout& layout,
                                const std::vector<TracedStage>& stages) const {
    const TracedStage* largest = nullptr;
    PlannedLayout most;
    for (const TracedStage& stage : stages) {
      PlannedLayout own = layout;
      add_memory(own, stage.trace.step);
      if (!largest || own.total > most.total) largest = &stage, most = std::move(own);
    }
    layout = std::move(most);
    return *largest;
  }

  void add_memory(PlannedLayout& layout, const Tracer::Step& step) const {
    Peak peak = peak_of(step);
    for (size_t kind = 0; kind < n_memory_kinds; ++kind)
      layout.memory[name_of(MemoryKind(kind))] = peak.kinds[kind];
    layout.allocated = peak.bytes;
    layout.largest = std::move(peak.largest);
    int64_t n_groups = (layout.zero_group > 1) +
                       (layout.n_copies > layout.zero_group * layout.n_expert_shards) +
                       (layout.n_model_shards > 1) + (layout.n_context_shards > 1) +
                       (layout.n_expert_shards > 1) + n_groups_of_stages(layout) +
                       (layout.n_copies * layout.n_model_shards * layout.n_context_shards *
                            layout.n_pipeline_stages >
                        1);
    layout.reserved =
        cluster_.reserve.context + cluster_.reserve.workspace + n_groups * cluster_.reserve.group;
    // On a CPU only the bytes of tensors count.
    if (cluster_.device().kind != DeviceFacts::cpu) {
      // LibTorch's allocator returns unused segments before it gives up.
      int64_t capacity = std::max<int64_t>(0, most_bytes() - layout.reserved);
      AllocatorUse use = replay(step.log, capacity);
      layout.fragmentation = std::max<int64_t>(0, use.reserved - peak.bytes);
    }
    layout.total = layout.allocated + layout.fragmentation + layout.reserved;
    layout.host_memory = step.host_bytes;
  }

  static std::string largest_kind(const PlannedLayout& layout) {
    auto largest =
        std::ranges::max_element(layout.memory, {}, [](const auto& entry) { return entry.second; });
    return largest->first + " " + bytes_text(largest->second);
  }

  // One group of all stages, and one link in each direction for each neighbour.
  static int64_t n_groups_of_stages(const PlannedLayout& layout) {
    const int64_t last = layout.n_pipeline_stages - 1;
    if (layout.n_chunks_per_stage > 1) return 5;
    return last == 0 ? 0 : 1 + 2 * ((layout.stage > 0) + (layout.stage < last));
  }

  void add_time(PlannedLayout& layout, const StepSeconds& step) {
    const StepTime& time = step.slowest;
    layout.seconds = time.total;
    layout.price = cluster_.price(time.total);
    layout.exposed_seconds = time.exposed_sum() + time.straggling;
    layout.starting_seconds = time.starting;
    double& busy = busy_.try_emplace(kind_of(layout), time.compute).first->second;
    busy = std::min(busy, time.compute);
    for (size_t dim = 0; dim < time.exposed.size(); ++dim)
      if (time.exposed[dim] > 0)
        layout.exposed[dim < Mesh::n_dims ? Mesh::facts[dim].name : "world"] = time.exposed[dim];
    if (time.straggling > 0) layout.exposed["the slowest device"] = time.straggling;
    layout.mfu = cost_.model_flops_utilization(step.model_flops, time.total, layout.compute_dtype);
  }

  // Names the weights that each model shard holds whole, if these are a large part of the model.
  void add_whole_weights(PlannedLayout& layout,
                         const std::vector<ShardingDecision>& decisions) const {
    std::map<std::string, std::pair<int64_t, int64_t>> whole;  // count and bytes by reason
    for (const ShardingDecision& each : decisions) {
      if (layout.n_model_shards == 1 || each.placement.is_sharded() || each.sizes.size() < 2)
        continue;
      auto& [count, bytes] = whole[each.reason];
      ++count;
      bytes += each.bytes;
    }
    for (const auto& [reason, found] : whole) {
      auto [count, bytes] = found;
      constexpr double worth_a_note = 0.02;
      if (double(bytes) < worth_a_note * double(whole_.parameters)) continue;
      std::ostringstream note;
      note << "each of " << layout.n_model_shards << " model shards holds " << count
           << (count == 1 ? " weight of " : " weights of ") << bytes_text(bytes)
           << (count == 1 ? ", " : " in all, ")
           << std::lround(100.0 * double(bytes) / double(whole_.parameters))
           << " % of the parameters: " << reason;
      layout.notes.push_back(note.str());
    }
  }

  void add_notes(PlannedLayout& layout, const Tracer::Step& step) const {
    for (std::string& note : cost_.notes(step.log)) layout.notes.push_back(std::move(note));
    for (const auto& [line, count] : step.values_read) {
      if (line == from_line_) continue;  // the Trainer's own, such as the loss
      layout.notes.push_back(line + " reads " + std::to_string(count) +
                             (count == 1 ? " value, taken as 1" : " values, taken as 1"));
    }
    for (const auto& [name, count] : step.without_shapes)
      layout.notes.push_back(name + " has no shapes-only form: it ran on zeros" +
                             (count == 1 ? "" : ", " + std::to_string(count) + " times"));
  }

  TracedProgram program_;
  ClusterSpec cluster_;
  PlanOptions options_;
  CostModel cost_;
  WholeBytes whole_;
  StepPlan result_;
  clock::time_point from_ = clock::now();
  std::string from_line_ = call_site();
  int64_t n_left_ = 0, n_slow_ = 0;  // layouts that were not tried
  bool has_blocks_ = false;          // whether the loss marks blocks
  // The placements of parameters, by the number of model shards: each is decided once.
  std::map<int64_t, std::vector<ShardingDecision>> decisions_;
  std::map<Kind, double> busy_;  // the least seconds that a device computes
  std::vector<PlannedLayout> done_, of_zero1_;
};

}  // namespace

StepPlan plan_step(const TrainerOptions& trainer, const Dataset& examples,
                   const ClusterSpec& cluster, const PlanOptions& options) {
  require(examples.size > 0, "plan: the set of examples is empty");
  Unlogged unlogged;
  return Search(trainer, examples, cluster, options).run();
}

}  // namespace redco
