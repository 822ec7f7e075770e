// Formats sharding decisions as a table.

#include <redco/sharding_rules.h>

#include "../report/in_bytes.h"
#include "layout_search.h"

#include <algorithm>
#include <cmath>
#include <sstream>

namespace redco {

using namespace sharding;

std::string sharding::with_stars(const std::string& name) {
  std::string result;
  std::istringstream parts(name);
  for (std::string part; std::getline(parts, part, '.');) {
    bool is_number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    result += (result.empty() ? "" : ".") + (is_number ? "*" : part);
  }
  return result;
}

std::string to_string(const std::vector<ShardingDecision>& decisions) {
  struct Line {
    const ShardingDecision* first;
    std::string name;
    int64_t count = 0, bytes_per_device = 0;
  };
  std::vector<Line> lines;
  int64_t bytes = 0, bytes_per_device = 0;
  for (const ShardingDecision& decision : decisions) {
    bytes += decision.bytes;
    bytes_per_device += decision.bytes_per_device;
    std::string name = with_stars(decision.name);
    auto same = std::find_if(lines.begin(), lines.end(), [&](const Line& line) {
      return line.name == name && line.first->sizes == decision.sizes &&
             line.first->placement == decision.placement && line.first->reason == decision.reason;
    });
    if (same == lines.end()) same = lines.insert(lines.end(), {&decision, name});
    ++same->count;
    same->bytes_per_device += decision.bytes_per_device;
  }
  std::ostringstream text;
  for (const Line& line : lines) {
    text << (line.count == 1 ? line.first->name : line.name);
    if (line.count > 1) text << " (" << line.count << ")";
    text << " " << at::IntArrayRef(line.first->sizes) << ": " << to_string(line.first->placement)
         << ", " << in_bytes(line.bytes_per_device) << " a device; " << line.first->reason << "\n";
  }
  text << "all: " << in_bytes(bytes_per_device) << " of " << in_bytes(bytes) << " on each device";
  return text.str();
}

std::string to_string(const StageDecisions& decisions) {
  double flops = 0;
  for (const StageDecisions::Stage& stage : decisions.stages) flops += stage.flops;
  std::ostringstream text;
  int64_t first = 1;
  const size_t n_stages = decisions.stages.size() / size_t(decisions.n_chunks_per_stage);
  for (size_t i = 0; i < decisions.stages.size(); ++i) {
    const auto& [n_blocks, work] = decisions.stages[i];
    text << "stage " << i % n_stages << ": block";
    if (n_blocks > 1) text << "s " << first << " to";
    text << " " << first + n_blocks - 1;
    if (flops > 0) text << ", " << std::lround(100 * work / flops) << " % of the work";
    text << "\n";
    first += n_blocks;
  }
  text << "on all stages: ";
  for (size_t i = 0; i < decisions.shared.size(); ++i)
    text << (i == 0 ? "" : ", ") << decisions.shared[i];
  if (decisions.shared.empty()) text << "no parameter";
  return text.str();
}

}  // namespace redco
