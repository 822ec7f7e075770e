// Formats the sharding report of a run.

#include <redco/sharding_report.h>

#include "in_bytes.h"

#include <redco/moves.h>
#include <redco/sharding.h>

#include <algorithm>
#include <functional>
#include <iomanip>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace redco {

using namespace sharding;

namespace {

void report_collectives(std::ostream& text,
                        const std::vector<std::shared_ptr<const Mesh>>& meshes) {
  using GroupOf = std::function<const Group&(const Mesh&)>;
  std::vector<GroupOf> groups;
  size_t width = 6;
  for (Mesh::Dim dim : Mesh::dims) {
    groups.emplace_back([dim](const Mesh& mesh) -> const Group& { return mesh.group(dim); });
    bool is_shown = std::ranges::any_of(meshes, [&](const auto& m) { return m->size(dim) > 1; });
    if (is_shown) width = std::max(width, std::string(Mesh::facts[dim].name).size() + 2);
  }
  groups.emplace_back([](const Mesh& mesh) -> const Group& { return mesh.world(); });
  text << "Collectives, and the bytes that this process sent in them:\n";
  bool any = false;
  for (const GroupOf& group_of : groups) {
    for (uint8_t kind = 0; kind < Group::n_kinds; ++kind) {
      Traffic all;
      for (const auto& mesh : meshes) {
        const Traffic& traffic = group_of(*mesh).counters()[kind];
        all.count += traffic.count;
        all.bytes += traffic.bytes;
      }
      if (all.count == 0) continue;
      any = true;
      text << "  " << std::left << std::setw(int(width)) << group_of(*meshes[0]).name()
           << std::setw(15) << Group::name(Group::Kind(kind)) << std::right << std::setw(8)
           << all.count << std::setw(13) << in_bytes(all.bytes) << "\n";
    }
  }
  if (!any) text << "  none\n";
}

std::string in_calls(int64_t calls) {
  return std::to_string(calls) + (calls == 1 ? " call, " : " calls, ");
}

// The traffic of one script line, over all groups and kinds of collectives.
struct Line {
  std::string what, place, how;
  int64_t calls = 0, bytes = 0;
};

std::vector<Line> lines_of(const MoveCounters& counters,
                           const std::function<bool(const Move&)>& counts) {
  std::vector<Line> lines;
  for (const auto& [move, moved] : counters.moves) {
    if (!counts(move)) continue;
    std::string place = move.line.empty() ? "" : " at " + move.line;
    if (move.is_backward) place += " in backward";
    auto line = std::find_if(lines.begin(), lines.end(), [&](const Line& other) {
      return other.what == move.what && other.place == place;
    });
    if (line == lines.end()) line = lines.insert(lines.end(), {move.what, place, "", 0, 0});
    line->calls = std::max(line->calls, moved.calls);  // one call may take several collectives
    line->bytes += moved.bytes;
    line->how +=
        (line->how.empty() ? "" : ", ") + std::string(Group::name(move.kind)) + " on " + move.group;
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) { return a.bytes > b.bytes; });
  return lines;
}

// Reports the lines that move the most, and the total of the others.
void report_lines(std::ostream& text, const std::vector<Line>& lines, bool with_advice) {
  constexpr size_t most_lines = 20;
  std::set<std::string> advised;
  for (size_t i = 0; i < std::min(lines.size(), most_lines); ++i) {
    const Line& line = lines[i];
    text << "  " << line.what << line.place << ": " << in_calls(line.calls) << in_bytes(line.bytes)
         << " (" << line.how << ")\n";
    if (with_advice && advised.insert(line.what).second)
      text << "    " << advice(line.what) << "\n";
  }
  if (lines.size() <= most_lines) return;
  int64_t bytes = 0;
  for (size_t i = most_lines; i < lines.size(); ++i) bytes += lines[i].bytes;
  text << "  and " << lines.size() - most_lines << " more lines: " << in_bytes(bytes) << "\n";
}

bool is_of_operator(const Move& move) {
  return move.cause == Move::operator_cause || move.cause == Move::without_rule ||
         move.cause == Move::within_operator;
}

void report_moves(std::ostream& text, const MoveCounters& counters) {
  auto gathers = lines_of(counters, [](const Move& move) { return move.is_gather(); });
  if (gathers.empty()) {
    text << "All operators worked on parts.\n";
  } else {
    text << "Operators whose arguments had to be gathered or redistributed, "
         << in_bytes(counters.gathered_bytes) << " in all:\n";
    report_lines(text, gathers, true);
  }
  auto asked = lines_of(counters, [](const Move& move) { return move.cause == Move::request; });
  if (!asked.empty()) text << "Gathered or redistributed by the script:\n";
  report_lines(text, asked, false);
  const std::pair<const char*, std::function<bool(const Move&)>> totals[] = {
      {"sums for operators",
       [](const Move& move) { return is_of_operator(move) && !move.is_gather(); }},
      {"shared parameters", [](const Move& move) { return move.cause == Move::parameters; }},
      {"gradients", [](const Move& move) { return move.cause == Move::gradients; }},
      {"checkpoints", [](const Move& move) { return move.cause == Move::checkpoint; }},
      {"other stages", [](const Move& move) { return move.cause == Move::stage; }},
      {"agreement", [](const Move& move) { return move.cause == Move::other_cause; }}};
  bool is_first = true;
  for (const auto& [name, counts] : totals) {
    Moved all;
    for (const auto& [move, moved] : counters.moves) {
      if (!counts(move)) continue;
      all.collectives += moved.collectives;
      all.bytes += moved.bytes;
    }
    if (all.collectives == 0) continue;
    if (std::exchange(is_first, false)) text << "Also sent:\n";
    text << "  " << std::left << std::setw(19) << name << std::right << std::setw(8)
         << all.collectives << std::setw(13) << in_bytes(all.bytes) << "\n";
  }
}

}  // namespace

bool has_several_processes(const std::vector<std::shared_ptr<const Mesh>>& meshes) {
  return std::any_of(meshes.begin(), meshes.end(),
                     [](const auto& mesh) { return mesh->world().size() > 1; });
}

std::string sharding_report(const std::vector<std::shared_ptr<const Mesh>>& meshes) {
  if (meshes.empty()) return "sharding: there was no Deployer, so nothing was sharded";
  if (!has_several_processes(meshes))
    return "sharding: one process holds everything, so nothing was sharded";
  const Mesh& newest = *meshes.back();
  std::ostringstream text;
  text << "sharding over " << newest.world().size() << " processes (";
  for (const char* comma = ""; Mesh::Dim dim : Mesh::dims) {
    if (Mesh::facts[dim].is_optional && newest.size(dim) == 1) continue;
    text << std::exchange(comma, ", ") << Mesh::facts[dim].name << " = " << newest.size(dim);
  }
  text << "), as process " << newest.processes().rank << " saw it\n";
  report_collectives(text, meshes);
  const ShardingCounters& counters = sharding_counters();
  report_moves(text, move_counters());
  text << "Plans of calls: " << counters.plans_found << " found, " << counters.plans_made
       << " made";
  return text.str();
}

}  // namespace redco
