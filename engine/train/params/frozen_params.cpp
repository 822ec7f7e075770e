// Tracks which parameters of a run are as they are in their files.

#include "frozen_params.h"

#include "../../formats/tensors/small_tensors.h"
#include "../../mesh/run/agreement.h"

#include <redco/detail/read_whole.h>
#include <redco/json.h>
#include <redco/moves.h>
#include <redco/sharding.h>
#include <redco/tensor_source.h>

#include <utility>

namespace redco::train {

using namespace mesh;

namespace {

uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : uint32_t(tensor._version());
}

}  // namespace

void FrozenParams::add(const std::string& name, const at::Tensor& given, const at::Tensor& own) {
  auto source = source_of(given);
  if (!source || source->name.empty() || given.is_meta() || given.layout() != at::kStrided) return;
  Entry entry;
  entry.tensor = {.dtype = given.scalar_type(), .sizes = given.sizes().vec(), .source = *source};
  if (is_compared_by_value(given))
    entry.tensor.xxh3 = checksum_of(given.detach(), given.scalar_type());
  entry.version = version_of(own);
  set_source(own, *source);
  entries_.insert_or_assign(name, std::move(entry));
}

void FrozenParams::replaced(const std::vector<NamedTensor>& params) {
  for (const auto& [name, tensor] : params) {
    auto found = entries_.find(name);
    if (found == entries_.end()) continue;
    found->second.version = version_of(tensor);
    set_source(tensor, found->second.tensor.source);
  }
}

FrozenTensors FrozenParams::unchanged(const std::vector<NamedTensor>& params, const Mesh& mesh) {
  if (entries_.empty()) return {};
  std::map<std::string, at::Tensor> by_name(params.begin(), params.end());
  bool decides = mesh.world().rank() == 0;
  Moving moving(Move::checkpoint, "save");
  // Of each, the checksum of the first process, or "" if it has changed.
  Tree::List sums;
  for (const auto& [name, entry] : entries_) {
    const at::Tensor& tensor = by_name.at(name);
    // A tensor that is sharded now is compared, too: it is gathered.
    bool is_compared = is_small(tensor) && !entry.tensor.xxh3.empty();
    bool is_same = is_compared || entry.version == version_of(tensor);
    std::string sum = entry.tensor.xxh3;
    if (sum.empty() || is_compared) {
      at::Tensor whole = full_to_read(tensor);
      if (decides) sum = checksum_of(whole, entry.tensor.dtype);
      is_same = is_same && (!is_compared || sum == entry.tensor.xxh3);
    }
    sums.emplace_back(is_same ? sum : std::string());
  }
  std::string told = text_of_process(mesh, 0, json_from_tree("frozen parameters", sums));
  Tree agreed = tree_from_json("frozen parameters: ", told);
  FrozenTensors unchanged;
  size_t i = 0;
  for (auto entry = entries_.begin(); entry != entries_.end(); ++i) {
    const auto& sum = agreed.as<Tree::List>().at(i).as<std::string>();
    if (sum.empty()) {
      entry = entries_.erase(entry);
      continue;
    }
    entry->second.tensor.xxh3 = sum;
    unchanged.emplace(entry->first, entry->second.tensor);
    ++entry;
  }
  return unchanged;
}

}  // namespace redco::train
