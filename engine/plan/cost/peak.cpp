// Finds which blocks exist when a step needs the most memory.

#include "peak.h"

#include <algorithm>
#include <map>

namespace redco::plan {

Peak peak_of(const Tracer::Step& step) {
  const std::vector<Allocation>& allocations = step.log.allocations;
  Peak peak;
  int64_t bytes = 0;
  size_t length = 0;  // of the part of the log up to the peak
  for (size_t i = 0; i < allocations.size(); ++i) {
    bytes += allocations[i].bytes;
    if (bytes <= peak.bytes) continue;
    peak.bytes = bytes;
    length = i + 1;
  }
  std::map<int64_t, int64_t> alive;  // bytes by block
  for (size_t i = 0; i < length; ++i) {
    if (allocations[i].bytes > 0)
      alive[allocations[i].block] = allocations[i].bytes;
    else
      alive.erase(allocations[i].block);
  }
  for (const auto& [block, size] : alive) {
    const BlockFacts& facts = step.blocks.at(block);
    peak.kinds[size_t(facts.kind)] += size;
    peak.largest.push_back(
        {size, name_of(facts.kind), facts.operator_name, facts.line, facts.is_backward});
  }
  std::stable_sort(peak.largest.begin(), peak.largest.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  constexpr size_t most = 10;
  if (peak.largest.size() > most) peak.largest.resize(most);
  return peak;
}

}  // namespace redco::plan
