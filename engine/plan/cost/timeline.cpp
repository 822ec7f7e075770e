// Divides a step into parts, and finds the largest memory of a device in each part.

#include "timeline.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

namespace redco::plan {

MemoryTimeline timeline_of(const CostModel& cost, const StepLog& log, size_t n_moments) {
  std::vector<double> times;
  cost.simulate(log, &times);
  using Bytes = std::array<int64_t, n_memory_kinds>;
  auto sum = [](const Bytes& bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  };
  Bytes now{};
  std::vector<Bytes> most(n_moments);
  double end = times.empty() ? 0 : times.back();
  size_t moment = 0;
  for (size_t i = 0; i < log.sequence.size(); ++i) {
    auto [what, index] = log.sequence[i];
    if (what != StepLog::What::allocation) continue;
    size_t of_event = end > 0 ? std::min(n_moments - 1, size_t(times[i] / end * double(n_moments)))
                              : n_moments - 1;
    // A block that exists when a part begins counts in that part.
    while (moment < of_event) most[++moment] = now;
    const Allocation& each = log.allocations[size_t(index)];
    now[size_t(each.kind)] += each.bytes;
    if (sum(now) > sum(most[moment])) most[moment] = now;
  }
  while (moment + 1 < n_moments) most[++moment] = now;
  MemoryTimeline timeline{.seconds = end / double(n_moments)};
  for (const Bytes& bytes : most) {
    MemoryTimeline::Moment& named = timeline.moments.emplace_back();
    for (size_t kind = 0; kind < n_memory_kinds; ++kind)
      named[name_of(MemoryKind(kind))] = bytes[kind];
  }
  return timeline;
}

}  // namespace redco::plan
