// Batches of which each process collates only its own part (Collate::local).

#include "local_batch.h"

#include "batches.h"

#include <redco/error.h>
#include <redco/sharding.h>

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <map>
#include <set>
#include <string_view>

namespace redco::train {

namespace {

// A textual description of a leaf of a batch, for comparison between processes. Tensors can be
// described in two ways.
struct Reading {
  std::string
      as_rows;  // "Long [examples, 12]"; empty if its first dimension is not that of the examples
  std::string as_whole;  // "Long [2, 12] with checksum 1f", "the integer 3"; empty if not requested

  const std::string& text() const { return as_rows.empty() ? as_whole : as_rows; }
};
using Readings = std::map<std::string, Reading>;  // by path

std::string rows_text(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.scalar_type() << " [examples";
  for (int64_t size : tensor.sizes().slice(1)) text << ", " << size;
  text << "]";
  return text.str();
}

std::string whole_text(const Tree& leaf) {
  std::ostringstream text;
  if (leaf.is_tensor()) {
    at::Tensor tensor = leaf.tensor().detach().contiguous().cpu();
    std::string_view bytes(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
    text << tensor.scalar_type() << " " << tensor.sizes() << " with checksum " << std::hex
         << std::hash<std::string_view>()(bytes);
  } else if (leaf.is<int64_t>()) {
    text << "the integer " << leaf.as<int64_t>();
  } else if (leaf.is<double>()) {
    text.precision(17);
    text << "the number " << leaf.as<double>();
  } else {
    text << "the " << leaf.kind();
    if (leaf.is<bool>()) text << (leaf.as<bool>() ? " true" : " false");
  }
  return text.str();
}

// Describes all leaves except strings. Checksums of tensors with a row per example are rarely
// needed and cost a pass over the batch.
Readings readings_of(const Tree& batch, int64_t n_examples, bool with_all_checksums) {
  Readings readings;
  for_each_leaf(batch, [&](const std::string& path, const Tree& leaf) {
    if (leaf.is<std::string>()) return;
    Reading& reading = readings[path];
    if (leaf.is_tensor() && leaf.tensor().dim() > 0 && leaf.tensor().size(0) == n_examples)
      reading.as_rows = rows_text(leaf.tensor());
    if (reading.as_rows.empty() || with_all_checksums) reading.as_whole = whole_text(leaf);
  });
  return readings;
}

std::string packed(const Readings& readings) {
  std::string text;
  for (const auto& [path, reading] : readings)
    for (const std::string& part : {path, reading.as_rows, reading.as_whole})
      text.append(part).push_back('\0');
  return text;
}

Readings unpacked(const char* text, const char* end) {
  auto next = [&] {
    std::string part(text);
    text += part.size() + 1;
    return part;
  };
  Readings readings;
  while (text < end) {
    std::string path = next(), as_rows = next();
    readings[path] = {as_rows, next()};
  }
  return readings;
}

at::Tensor gather(const at::Tensor& own, const Mesh& mesh) {
  return mesh.world().all_gather(own.to(mesh.device())).cpu();
}

bool is_same_everywhere(const Readings& own, const Mesh& mesh) {
  at::Tensor all = gather(at::tensor({int64_t(std::hash<std::string>()(packed(own)))}), mesh);
  return (all == all[0]).all().item<bool>();
}

// Indexed by rank.
std::vector<Readings> all_readings(const Readings& own, const Mesh& mesh) {
  std::string text = packed(own);
  at::Tensor sizes = gather(at::tensor({int64_t(text.size())}), mesh);
  at::Tensor bytes = at::zeros({sizes.max().item<int64_t>()}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  at::Tensor all = gather(bytes, mesh);
  std::vector<Readings> readings;
  for (int64_t rank = 0; rank < all.size(0); ++rank) {
    auto begin = static_cast<const char*>(all[rank].const_data_ptr());
    readings.push_back(unpacked(begin, begin + sizes[rank].item<int64_t>()));
  }
  return readings;
}

// Whether the tensor at `path` has a row per example. All ranks must agree.
bool has_rows(const std::string& path, const std::vector<Readings>& by_rank) {
  static const Reading missing = {.as_rows = "", .as_whole = "missing"};
  auto reading_of = [&](size_t rank) -> const Reading& {
    auto found = by_rank[rank].find(path);
    return found == by_rank[rank].end() ? missing : found->second;
  };
  bool are_rows = !reading_of(0).as_rows.empty(), are_alike = true;
  size_t other = 0;
  for (size_t rank = 1; rank < by_rank.size(); ++rank) {
    are_rows &= reading_of(rank).as_rows == reading_of(0).as_rows;
    are_alike &= reading_of(rank).as_whole == reading_of(0).as_whole;
    if (other == 0 && reading_of(rank).text() != reading_of(0).text()) other = rank;
  }
  require(are_rows || are_alike, "collate = \"local\": '", path, "' of the batch is ",
          reading_of(0).text(), " on process 0 and ", reading_of(other).text(), " on process ",
          other,
          ". Tensors with a row for each example must agree in the other dimensions: pad to a "
          "fixed length in collate_fn, not to the longest of the batch. Whatever else is in a "
          "batch must be the same on all processes: what depends on the whole batch is for loss_fn "
          "to compute. Or use collate = \"global\", with which every process collates all "
          "examples");
  return are_rows;
}

// The paths of the tensors that have a row per example.
std::set<std::string> paths_of_rows(const Tree& batch, int64_t n_examples, const Mesh& mesh) {
  std::set<std::string> paths;
  Readings own = readings_of(batch, n_examples, false);
  if (is_same_everywhere(own, mesh)) {
    for (const auto& [path, reading] : own)
      if (!reading.as_rows.empty()) paths.insert(path);
    return paths;
  }
  // On a rank with two examples any tensor of length 2 looks like rows, on other ranks not.
  std::vector<Readings> by_rank = all_readings(readings_of(batch, n_examples, true), mesh);
  std::set<std::string> all;
  for (const Readings& readings : by_rank)
    for (const auto& [path, reading] : readings) all.insert(path);
  for (const std::string& path : all)
    if (has_rows(path, by_rank)) paths.insert(path);
  return paths;
}

Span own_rows(int64_t n_examples, const Mesh& mesh) {
  return span_of(n_examples, Mesh::batch, mesh);
}

}  // namespace

std::span<const int64_t> local_part(std::span<const int64_t> indices, const Mesh& mesh) {
  Span own = own_rows(int64_t(indices.size()), mesh);
  return own.length() > 0 ? indices.subspan(size_t(own.begin), size_t(own.length()))
                          : indices.first(1);
}

Tree local_batch(const Dataset& examples, std::span<const int64_t> indices, at::Device device,
                 const std::shared_ptr<Mesh>& mesh) {
  int64_t n_examples = int64_t(indices.size());
  Span own = own_rows(n_examples, *mesh);
  auto collated = local_part(indices, *mesh);
  Tree batch = examples.collate(std::vector<int64_t>(collated.begin(), collated.end()));
  std::set<std::string> rows = paths_of_rows(batch, int64_t(collated.size()), *mesh);
  return map_tensors(
      own_batch(batch, device), [&](const std::string& path, const at::Tensor& tensor) {
        if (!rows.count(path)) return shard(tensor, mesh, {});
        std::vector<int64_t> sizes = tensor.sizes().vec();
        sizes[0] = n_examples;
        at::Tensor by_examples = from_local(tensor.narrow(0, 0, own.length()), mesh,
                                            placements_on(Mesh::batch, Placement::shard(0)), sizes);
        return redistribute(by_examples,
                            placements_of_rows(path, by_examples, examples.context_dims, *mesh));
      });
}

}  // namespace redco::train
