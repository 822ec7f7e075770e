#include <redco/sharding_report.h>

#include "advice.h"
#include "in_bytes.h"

#include <redco/sharding.h>

#include <algorithm>
#include <iomanip>
#include <sstream>

namespace redco {

namespace {

void tell_collectives(std::ostream& text, const std::vector<std::shared_ptr<const Mesh>>& meshes) {
  using GroupOf = const Group& (*)(const Mesh&);
  constexpr GroupOf groups[] = {
      [](const Mesh& mesh) -> const Group& { return mesh.group(Mesh::dp); },
      [](const Mesh& mesh) -> const Group& { return mesh.group(Mesh::mp); },
      [](const Mesh& mesh) -> const Group& { return mesh.world(); }};
  text << "Collectives, and the bytes that this process sent in them:\n";
  bool any = false;
  for (GroupOf group_of : groups) {
    for (uint8_t kind = 0; kind < Group::n_kinds; ++kind) {
      Traffic all;
      for (const auto& mesh : meshes) {
        const Traffic& traffic = group_of(*mesh).counters()[kind];
        all.count += traffic.count;
        all.bytes += traffic.bytes;
      }
      if (all.count == 0) continue;
      any = true;
      text << "  " << std::left << std::setw(6) << group_of(*meshes[0]).name() << std::setw(15)
           << Group::name(Group::Kind(kind)) << std::right << std::setw(8) << all.count
           << std::setw(13) << in_bytes(all.bytes) << "\n";
    }
  }
  if (!any) text << "  none\n";
}

void tell_gathers(std::ostream& text, const ShardingCounters& counters) {
  if (counters.gathers.empty()) {
    text << "All operators worked on parts.\n";
    return;
  }
  text
      << "Operators that cannot work on parts, and the bytes sent to make their arguments whole:\n";
  using Entry = std::pair<std::string, ShardingCounters::Gather>;
  std::vector<Entry> gathers(counters.gathers.begin(), counters.gathers.end());
  std::stable_sort(gathers.begin(), gathers.end(),
                   [](const Entry& a, const Entry& b) { return a.second.bytes > b.second.bytes; });
  for (const auto& [name, gather] : gathers) {
    text << "  " << name << ": " << gather.count << (gather.count == 1 ? " call, " : " calls, ")
         << in_bytes(gather.bytes);
    if (!gather.first_call.empty()) text << "; the first at " << gather.first_call;
    text << "\n    " << advice(name) << "\n";
  }
}

int64_t all_of(const TrainerMemory& memory) {
  return memory.params.here + memory.grads.here + memory.opt_state.here;
}

void tell_memory(std::ostream& text, const std::vector<TrainerMemory>& trainers) {
  if (trainers.empty()) return;
  const TrainerMemory& largest = *std::max_element(
      trainers.begin(), trainers.end(),
      [](const TrainerMemory& a, const TrainerMemory& b) { return all_of(a) < all_of(b); });
  text << "Held on this device";
  if (trainers.size() > 1) text << " by the largest of " << trainers.size() << " Trainers";
  text << ":\n";
  const std::pair<const char*, const HeldBytes*> lines[] = {
      {"parameters", &largest.params},
      {"gradients", &largest.grads},
      {"optimizer states", &largest.opt_state}};
  for (const auto& [name, held] : lines)
    text << "  " << std::left << std::setw(17) << name << std::right << std::setw(11)
         << in_bytes(held->here) << " of " << in_bytes(held->whole) << "\n";
}

}  // namespace

std::string sharding_report(const std::vector<std::shared_ptr<const Mesh>>& meshes,
                            const std::vector<TrainerMemory>& trainers) {
  if (meshes.empty()) return "sharding: there was no Deployer, so nothing was sharded";
  bool is_alone = std::all_of(meshes.begin(), meshes.end(),
                              [](const auto& mesh) { return mesh->world().size() == 1; });
  if (is_alone) return "sharding: one process holds everything, so nothing was sharded";
  const Mesh& newest = *meshes.back();
  std::ostringstream text;
  text << "sharding over " << newest.world().size() << " processes (dp = " << newest.size(Mesh::dp)
       << ", mp = " << newest.size(Mesh::mp) << "), as process " << newest.processes().rank
       << " saw it\n";
  tell_collectives(text, meshes);
  const ShardingCounters& counters = sharding_counters();
  tell_gathers(text, counters);
  tell_memory(text, trainers);
  text << "Plans of calls: " << counters.plans_found << " found, " << counters.plans_made
       << " made";
  return text.str();
}

}  // namespace redco
