#include "pipeline_time.h"

#include "../../train/step/pipeline.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>

namespace redco::plan {

namespace {

constexpr Mesh::Dim along_stages = Mesh::dim_of(Mesh::pipeline);

// Returns the operations of a step's products, without recomputed ones.
double flops_of(const StepLog& log) {
  double flops = 0;
  for (const Operator& call : log.operators)
    if (!call.is_recomputed) flops += call.flops;
  return flops;
}

// Returns the time of the messages to another stage that a pass starts.
double sending_seconds(const CostModel& cost, const StepLog& log, const StepLog::Pass& pass) {
  double seconds = 0;
  for (size_t i = pass.begin; i < pass.end; ++i) {
    if (log.sequence[i].what != StepLog::What::collective_start) continue;
    const Collective& each = log.collectives[size_t(log.sequence[i].index)];
    const bool is_message = each.dim == along_stages && each.kind == Group::all_to_all_kind;
    if (is_message && each.bytes_sent > 0) seconds += cost.seconds(each);
  }
  return seconds;
}

StepTime scaled(StepTime time, double factor) {
  for (double* seconds : {&time.total, &time.compute, &time.starting, &time.straggling})
    *seconds *= factor;
  for (double& seconds : time.communication) seconds *= factor;
  for (double& seconds : time.exposed) seconds *= factor;
  return time;
}

}  // namespace

StageSeconds stage_seconds(const CostModel& cost, const StepLog& log) {
  std::vector<double> times;
  const StepTime time = cost.simulate(log, &times);
  const double total = time.total, end = total - time.starting - time.straggling;
  // A GPU's host or the slowest device delays all parts of a step alike.
  const double longer = end > 0 ? total / end : 1;
  auto time_of = [&](size_t event) { return event < times.size() ? times[event] : end; };
  struct Passes {
    double sum = 0, last = 0, sending = 0, n = 0;
    // Leaves out the last pass, which may do more than the others.
    double each() const { return n > 1 ? (sum - last) / (n - 1) : sum; }
  };
  Passes forward, backward;
  for (const StepLog::Pass& pass : log.passes) {
    Passes& passes = pass.is_backward ? backward : forward;
    passes.last = longer * (time_of(pass.end) - time_of(pass.begin));
    passes.sum += passes.last;
    passes.sending += sending_seconds(cost, log, pass);
    passes.n += 1;
  }
  if (forward.n == 0) return {.forward = total};  // a train_step_fn runs stage after stage
  auto mean = [](double sum, double n) { return n > 0 ? sum / n : 0; };
  StageSeconds seconds{.forward = mean(forward.sum, forward.n),
                       .backward = backward.each(),
                       .to_next = mean(forward.sending, forward.n),
                       .to_previous = mean(backward.sending, backward.n)};
  seconds.rest = total - forward.n * seconds.forward - backward.n * seconds.backward;
  return seconds;
}

double pipeline_seconds(const std::vector<StageSeconds>& stages, int64_t n_chunks,
                        int64_t n_batches) {
  using Time = std::optional<double>;
  struct Stage {
    std::vector<train::Turn> turns;
    std::vector<Time> forward, backward;  // when they end, by micro-batch and chunk
    size_t next = 0;                      // of `turns`
    double now = 0;
  };
  const auto n_stages = int64_t(stages.size());
  const auto n = size_t(n_batches * n_chunks);
  std::vector<Stage> running;
  for (int64_t i = 0; i < n_stages; ++i)
    running.push_back({train::turns_of(i, n_stages, n_chunks, size_t(n_batches)),
                       std::vector<Time>(n), std::vector<Time>(n)});
  auto place_of = [&](size_t micro_batch, int64_t chunk) {
    return micro_batch * size_t(n_chunks) + size_t(chunk);
  };
  // Returns when the input of a turn has arrived; none if that is not known yet.
  auto begin_of = [&](int64_t stage, const train::Turn& turn) -> Time {
    const int64_t from = turn.chunk * n_stages + stage + (turn.is_backward ? 1 : -1);
    if (from < 0 || from == n_stages * n_chunks) return 0;
    const auto other = size_t(from % n_stages);
    const auto& made = turn.is_backward ? running[other].backward : running[other].forward;
    const Time& end = made[place_of(turn.micro_batch, from / n_stages)];
    if (!end) return std::nullopt;
    return *end + (turn.is_backward ? stages[other].to_previous : stages[other].to_next);
  };
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (size_t i = 0; i < stages.size(); ++i) {
      Stage& stage = running[i];
      for (; stage.next < stage.turns.size(); ++stage.next, goes_on = true) {
        const auto [micro_batch, chunk, is_backward] = stage.turns[stage.next];
        const Time begin = begin_of(int64_t(i), stage.turns[stage.next]);
        if (!begin) break;
        stage.now =
            std::max(stage.now, *begin) + (is_backward ? stages[i].backward : stages[i].forward);
        (is_backward ? stage.backward : stage.forward)[place_of(micro_batch, chunk)] = stage.now;
      }
    }
  }
  double total = 0;
  for (size_t i = 0; i < stages.size(); ++i)
    total = std::max(total, running[i].now + stages[i].rest);
  return total;
}

StepSeconds step_seconds(const CostModel& cost, const std::vector<TracedStage>& traced,
                         int64_t n_traced, int64_t n_chunks, int64_t n_batches) {
  const auto& work = traced.front().trace.stages;
  if (work.empty()) {
    const StepLog& log = traced.front().trace.step.log;
    return {cost.simulate(log), flops_of(log)};
  }
  struct Stage {
    const StepLog* log;
    StageSeconds seconds;
  };
  const int64_t n_turns = n_batches * n_chunks;
  std::map<int64_t, Stage> known;
  for (const TracedStage& each : traced) {
    const StepLog& log = each.trace.step.log;
    known[each.stage] = {&log, stage_seconds(cost, log)};
  }
  const Stage& most = std::ranges::max_element(known, {}, [&](const auto& entry) {
                        return entry.second.seconds.busy(n_turns);
                      })->second;
  const StepTime time = cost.simulate(*most.log);
  const auto busiest = std::ranges::max_element(work, {}, &StageDecisions::Stage::flops);
  std::vector<StageSeconds> stages;
  double flops = 0;
  for (size_t i = 0; i < work.size(); ++i) {
    auto found = known.find(int64_t(i));
    const bool is_known = found != known.end();
    const double share = is_known ? 1 : work[i].flops / busiest->flops;
    const Stage& like = is_known ? found->second : known.at(busiest - work.begin());
    StageSeconds& seconds = stages.emplace_back(like.seconds);
    seconds.forward *= share;
    seconds.backward *= share;
    flops += share * flops_of(*like.log);
  }
  const double busy = most.seconds.busy(n_turns);
  StepSeconds step{scaled(time, busy / time.total),
                   flops / double(work.size()) * double(n_batches) / double(n_traced)};
  step.slowest.total = std::max(busy, pipeline_seconds(stages, n_chunks, n_batches));
  step.slowest.exposed[along_stages] += step.slowest.total - busy;
  return step;
}

}  // namespace redco::plan
