// Plans the step of a Trainer in each possible layout.

#include "peak.h"
#include "step_trace.h"

#include "allocator_model.h"
#include "cost_model.h"

#include <redco/error.h>
#include <redco/plan.h>
#include <redco/sharding.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <sstream>
#include <utility>

namespace redco {

using namespace plan;

namespace {

using clock = std::chrono::steady_clock;

std::string in_gib(int64_t bytes) {
  std::ostringstream text;
  text.precision(bytes < int64_t{100} << 30 ? 3 : 4);
  text << double(bytes) / double(int64_t{1} << 30) << " GiB";
  return text.str();
}

// Bytes of the whole model: what the layouts divide.
struct WholeBytes {
  int64_t parameters = 0, gradients = 0, states = 0;
};

int64_t bytes_of(const Tree& tree) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : named_tensors(tree))
    bytes += tensor.numel() * int64_t(tensor.element_size());
  return bytes;
}

WholeBytes whole_bytes(const TrainerOptions& options) {
  std::shared_ptr<Mesh> mesh = make_imagined_mesh({});
  Recorder recorder(mesh);
  Recorder::Pause pause(recorder);
  std::vector<NamedTensor> trained;
  WholeBytes whole;
  std::set<const void*> counted;
  for (const auto& [name, param] : named_tensors(without_values(options.params, mesh))) {
    if (!counted.insert(param.unsafeGetTensorImpl()).second) continue;
    int64_t bytes = param.numel() * int64_t(param.element_size());
    whole.parameters += bytes;
    if (!param.is_floating_point() || !options.optimizer->trains(name, param)) continue;
    whole.gradients += bytes;
    trained.emplace_back(name, param);
  }
  whole.states = bytes_of(options.optimizer->init(trained));
  return whole;
}

// The least that a device can hold of them: each tensor divided evenly.
int64_t least_states(const WholeBytes& whole, const PlannedLayout& layout) {
  int64_t mp = layout.n_model_shards, dp = layout.n_copies;
  auto part = [&](int64_t bytes, int64_t from_zero) {
    return bytes / mp / (layout.zero >= from_zero ? dp : 1);
  };
  return part(whole.parameters, 3) + part(whole.gradients, 2) + part(whole.states, 1);
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
    result_.memory = cluster.device().memory;
    result_.notes = cluster.notes();
  }

  StepPlan run() {
    PlannedLayout asked = asked_layout();
    std::vector<PlannedLayout> others = candidates(asked);
    if (others.empty() && !asked.why.empty()) fail("plan: ", asked.why);
    std::vector<PlannedLayout> done{asked.why.empty() ? planned(asked, true) : asked};
    for (PlannedLayout& candidate : others) {
      std::chrono::duration<double> used = clock::now() - from_;
      bool has_one = std::ranges::any_of(done, &PlannedLayout::is_planned);
      if (used.count() > options_.timeout && has_one) {
        candidate.why = "not tried: the time was over";
        ++n_left_;
        continue;
      }
      done.push_back(best_batch(std::move(candidate)));
    }
    if (n_left_ > 0)
      result_.notes.push_back(std::to_string(n_left_) +
                              " layouts were not tried: the time was over (timeout)");
    if (std::ranges::none_of(done, &PlannedLayout::fits)) add_least(done);
    std::stable_sort(done.begin(), done.end(), [](const auto& a, const auto& b) {
      if (a.fits != b.fits) return a.fits;
      if (a.is_planned != b.is_planned) return a.is_planned;
      if (a.fits) return a.seconds < b.seconds;
      return a.is_planned ? a.total < b.total : a.states < b.states;
    });
    int64_t n = 0;
    for (PlannedLayout& layout : done)
      if (layout.is_asked || n++ < options_.n_layouts) result_.layouts.push_back(std::move(layout));
    return std::move(result_);
  }

 private:
  PlannedLayout asked_layout() {
    int64_t n = cluster_.n_devices();
    require(options_.per_device_batch_size > 0,
            "plan: per_device_batch_size = ", options_.per_device_batch_size, " must be positive");
    require(options_.n_model_shards > 0 && n % options_.n_model_shards == 0,
            "plan: n_model_shards = ", options_.n_model_shards, " does not divide the ", n,
            " devices of the cluster");
    PlannedLayout asked;
    asked.is_asked = true;
    asked.n_model_shards = options_.n_model_shards;
    asked.n_copies = n / options_.n_model_shards;
    asked.zero = options_.zero;
    asked.sequence_parallel = options_.sequence_parallel;
    asked.per_device_batch_size = options_.per_device_batch_size;
    int64_t micro = asked.per_device_batch_size * asked.n_copies;
    int64_t global = options_.global_batch_size.value_or(
        micro * program_.options.accumulate_grad_batches.value_or(1));
    require(global > 0, "plan: global_batch_size = ", global, " must be positive");
    if (global % micro != 0) {
      std::ostringstream why;
      why << "global_batch_size = " << global << " is no multiple of " << micro
          << " (per_device_batch_size = " << asked.per_device_batch_size << " on " << asked.n_copies
          << " copies of the model); the nearest: ";
      if (global > micro) why << global / micro * micro << " and ";
      why << (global / micro + 1) * micro;
      asked.why = why.str();
    }
    asked.n_accumulated = std::max<int64_t>(1, global / micro);
    result_.global_batch_size = global;
    return asked;
  }

  std::vector<PlannedLayout> candidates(const PlannedLayout& asked) {
    std::vector<PlannedLayout> all;
    int64_t n = cluster_.n_devices();
    int64_t most = options_.max_model_shards.value_or(cluster_.devices_per_host());
    for (int64_t mp = 1; mp <= std::min(n, most); ++mp) {
      int64_t copies = n / mp;
      if (n % mp != 0 || result_.global_batch_size % copies != 0) continue;
      int64_t per_copy = result_.global_batch_size / copies;
      // A device works on as much at a time as in the layout that is asked for.
      int64_t batch = std::max<int64_t>(1, asked.per_device_batch_size * mp / asked.n_model_shards);
      while (per_copy % batch != 0) --batch;
      for (int64_t zero = 0; zero <= (copies > 1 ? 3 : 0); ++zero) {
        PlannedLayout layout;
        layout.n_copies = copies;
        layout.n_model_shards = mp;
        layout.zero = zero;
        layout.sequence_parallel = asked.sequence_parallel && mp > 1;
        layout.per_device_batch_size = program_.options.train_step_fn ? per_copy : batch;
        layout.n_accumulated = per_copy / layout.per_device_batch_size;
        bool is_asked = mp == asked.n_model_shards && zero == asked.zero &&
                        layout.per_device_batch_size == asked.per_device_batch_size;
        if (!is_asked) all.push_back(std::move(layout));
      }
    }
    return all;
  }

  // If nothing fits: plans the layout whose states are least, and finds how many devices they need.
  void add_least(std::vector<PlannedLayout>& done) {
    auto least = done.end();
    for (auto each = done.begin(); each != done.end(); ++each)
      if (!each->is_planned && !each->is_asked &&
          (least == done.end() || each->states < least->states))
        least = each;
    if (least != done.end()) {
      least->per_device_batch_size = 1;
      least->n_accumulated = result_.global_batch_size / least->n_copies;
      if (program_.options.train_step_fn)
        std::swap(least->per_device_batch_size, least->n_accumulated);
      *least = planned(*least, true);
    }
    result_.states = whole_.parameters + whole_.gradients + whole_.states;
    result_.least_devices = (result_.states + most_bytes() - 1) / most_bytes();
  }

  // What a step may use of a device's memory.
  int64_t most_bytes() const {
    return std::max<int64_t>(1, int64_t(double(result_.memory) * (1 - options_.margin)));
  }

  // The layout with fewer examples at a time, if that makes it fit.
  PlannedLayout best_batch(PlannedLayout layout) {
    PlannedLayout first = planned(layout);
    PlannedLayout now = first;
    while (now.is_planned && !now.fits && now.per_device_batch_size > 1 &&
           !program_.options.train_step_fn) {
      int64_t per_copy = layout.per_device_batch_size * layout.n_accumulated;
      int64_t batch = now.per_device_batch_size / 2;
      while (per_copy % batch != 0) --batch;
      PlannedLayout smaller = layout;
      smaller.per_device_batch_size = batch;
      smaller.n_accumulated = per_copy / batch;
      now = planned(smaller);
    }
    return now.fits ? now : first;
  }

  PlannedLayout planned(PlannedLayout layout, bool even_if_states_do_not_fit = false) {
    layout.why.clear();
    layout.states = least_states(whole_, layout);
    if (layout.states > most_bytes() && !even_if_states_do_not_fit) {
      layout.why = "parameters, gradients and optimizer states alone need " + in_gib(layout.states);
      return layout;
    }
    StepTrace trace = trace_step(program_, {.mesh = {layout.n_copies, layout.n_model_shards},
                                            .zero = layout.zero,
                                            .sequence_parallel = layout.sequence_parallel,
                                            .per_device_batch_size = layout.per_device_batch_size,
                                            .n_accumulated = layout.n_accumulated});
    result_.n_parameters = trace.n_parameters;
    layout.is_planned = true;
    layout.collectives = std::move(trace.collectives);
    add_memory(layout, trace.record);
    layout.fits = layout.total <= most_bytes();
    if (!layout.fits)
      layout.why = "needs " + in_gib(layout.total) + ", of which " + largest_kind(layout);
    add_time(layout, trace.record.log);
    add_notes(layout, trace.record);
    return layout;
  }

  void add_memory(PlannedLayout& layout, const Recorder::Record& record) const {
    Peak peak = peak_of(record);
    for (size_t kind = 0; kind < n_memory_kinds; ++kind)
      layout.memory[name_of(MemoryKind(kind))] = peak.kinds[kind];
    layout.allocated = peak.bytes;
    layout.largest = std::move(peak.largest);
    bool is_cpu = cluster_.device().kind == DeviceFacts::cpu;
    int64_t n_groups = (layout.n_copies > 1) + (layout.n_model_shards > 1) +
                       (layout.n_copies * layout.n_model_shards > 1);
    layout.reserved =
        cluster_.reserve.context + cluster_.reserve.workspace + n_groups * cluster_.reserve.group;
    // LibTorch's allocator returns unused segments before it gives up; tcmalloc keeps its heap.
    auto kind = is_cpu ? AllocatorKind::tcmalloc : AllocatorKind::cuda;
    std::optional<int64_t> capacity;
    if (!is_cpu) capacity = std::max<int64_t>(0, most_bytes() - layout.reserved);
    AllocatorUse use = replay(record.log, kind, capacity);
    layout.fragmentation = std::max<int64_t>(0, use.reserved - peak.bytes);
    layout.total = layout.allocated + layout.fragmentation + layout.reserved;
  }

  static std::string largest_kind(const PlannedLayout& layout) {
    auto largest =
        std::ranges::max_element(layout.memory, {}, [](const auto& entry) { return entry.second; });
    return largest->first + " " + in_gib(largest->second);
  }

  void add_time(PlannedLayout& layout, const StepLog& log) const {
    StepTime time = cost_.simulate(log);
    layout.seconds = time.total;
    layout.exposed_seconds = time.exposed_sum();
    double flops = 0;
    for (const plan::Operator& call : log.operators) flops += call.flops;
    layout.mfu = cost_.model_flops_utilization(flops, time.total, program_.options.compute_dtype);
  }

  void add_notes(PlannedLayout& layout, const Recorder::Record& record) const {
    layout.notes = cost_.notes(record.log);
    for (const auto& [line, count] : record.values_read) {
      if (line == from_line_) continue;  // the Trainer's own, such as the loss
      layout.notes.push_back(line + " reads " + std::to_string(count) +
                             (count == 1 ? " value, taken as 1" : " values, taken as 1"));
    }
    for (const auto& [name, count] : record.without_shapes)
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
  int64_t n_left_ = 0;
};

}  // namespace

StepPlan plan_step(const TrainerOptions& trainer, const Dataset& examples,
                   const ClusterSpec& cluster, const PlanOptions& options) {
  require(examples.size > 0, "plan: the set of examples is empty");
  return Search(trainer, examples, cluster, options).run();
}

struct PlanMode::Impl {
  std::shared_ptr<Mesh> mesh = make_imagined_mesh({});
  Recorder recorder{mesh};
  Recorder::Pause pause{recorder};
};

namespace {

thread_local bool is_planning = false;

}  // namespace

PlanMode::PlanMode() : impl_(std::make_unique<Impl>()) { is_planning = true; }
PlanMode::~PlanMode() { is_planning = false; }

bool PlanMode::is_on() { return is_planning; }

PlanMode::ScriptCall::ScriptCall() : outer_(Recorder::set_script_calling(true)) {}
PlanMode::ScriptCall::~ScriptCall() { Recorder::set_script_calling(outer_); }

std::shared_ptr<Deployer> PlanMode::make_deployer(DeployerOptions options) {
  require(options.n_model_shards > 0, "n_model_shards = ", options.n_model_shards,
          " must be positive");
  options.device.reset();
  options.verbose = false;
  return Deployer::on_mesh(std::move(options), impl_->mesh);
}

}  // namespace redco
