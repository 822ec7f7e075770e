// Formats sharding decisions as a table.

#include <redco/sharding_rules.h>

#include "../report/in_bytes.h"
#include "layout_search.h"

#include <algorithm>
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

}  // namespace redco
