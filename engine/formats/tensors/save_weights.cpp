// Writes model weights in Hugging Face's layout.

#include <redco/weights.h>

#include "../../io/atomic_file.h"
#include "../../io/input_file.h"
#include "../../io/strict_json.h"
#include "safetensors_format.h"
#include "safetensors_writer.h"

#include <redco/detail/last_error.h>
#include <redco/error.h>
#include <redco/sharding.h>

#include <unistd.h>

#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <utility>

namespace redco {

using namespace io;

namespace fs = std::filesystem;
using nlohmann::json;
using namespace safetensors;

namespace {

using Items = std::vector<const Tensors::value_type*>;

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.numel() * int64_t(tensor.element_size());
}

// Splits as huggingface_hub does: in order, with a new part when the next tensor would exceed the
// limit; a tensor that exceeds it alone is a separate part, and the current part continues after
// it.
std::vector<Items> split(const Tensors& tensors, int64_t max_shard_size) {
  std::vector<Items> parts;
  Items current;
  int64_t size = 0;
  for (const auto& item : tensors) {
    int64_t bytes = bytes_of(item.second);
    if (bytes > max_shard_size) {
      parts.push_back({&item});
      continue;
    }
    if (size + bytes > max_shard_size) {
      parts.push_back(std::exchange(current, {}));
      size = 0;
    }
    current.push_back(&item);
    size += bytes;
  }
  if (!current.empty() || parts.empty()) parts.push_back(std::move(current));
  return parts;
}

json index_of(const std::string& stem, const std::vector<Items>& parts) {
  int64_t total = 0;
  json files = json::object();
  for (size_t i = 0; i < parts.size(); ++i)
    for (const auto* item : parts[i]) {
      files[item->first] = file_name(stem, i, parts.size());
      total += bytes_of(item->second);
    }
  return {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(files)}};
}

void write_index(const fs::path& path, const json& index) {
  write_file(path, index.dump(2) + "\n");
}

// New parts replace earlier parts of the same names one by one. Until the new index is written, the
// old index must refer to the earlier parts, so these get second names, which are removed at the
// end.
void keep_earlier(const fs::path& folder, const std::string& stem, const json& new_index) {
  fs::path index_path = folder / index_name(stem);
  if (fs::exists(folder / file_name(stem)) || !fs::exists(index_path)) return;
  json old_index;
  try {
    Weights earlier(index_path);
    old_index = json::parse(read_text(index_path, "an index", max_header));
  } catch (const Error&) {
    return;  // incomplete: nothing to keep
  }
  std::set<std::string> replaced;
  for (const auto& file : new_index["weight_map"]) replaced.insert(file.get<std::string>());
  std::map<std::string, std::string> second_names;
  for (auto& file : old_index["weight_map"]) {
    auto name = file.get<std::string>();
    if (replaced.count(name) == 0) continue;
    auto [second, is_new] = second_names.emplace(name, ".earlier-" + name);
    file = second->second;
    if (!is_new) continue;
    unlink((folder / second->second).c_str());  // left by a killed save
    // Without hard links, a kill between the renames leaves a mixture.
    if (link((folder / name).c_str(), (folder / second->second).c_str()) != 0) return;
  }
  write_index(index_path, old_index);
}

void remove_file(const fs::path& path) {
  if (unlink(path.c_str()) != 0) fail("cannot remove ", path.string(), ": ", LastError{});
}

// Removes the files of earlier saves, complete or killed, except `kept`.
void remove_stale(const fs::path& folder, const std::string& stem,
                  const std::set<std::string>& kept) {
  remove_stale_files(folder);
  const std::regex ours("(\\.earlier-)?" + stem +
                        "(-\\d{5}-of-\\d{5})?\\.safetensors(\\.index\\.json)?");
  // The index first: it must not refer to missing files.
  std::set<std::string> stale;
  std::error_code ignored;
  for (const auto& item : fs::directory_iterator(folder, ignored)) {
    std::string name = item.path().filename();
    if (std::regex_match(name, ours) && kept.count(name) == 0) stale.insert(name);
  }
  if (stale.erase(index_name(stem)) == 1) remove_file(folder / index_name(stem));
  for (const std::string& name : stale) remove_file(folder / name);
}

// Writes texts by their names in the folder.
void write_all(const fs::path& folder, const std::map<std::string, std::string>& texts) {
  auto make = [](const fs::path& path) {
    std::error_code error;
    fs::create_directories(path, error);
    require(!error, "cannot make the folder ", path.string(), ": ", error.message());
  };
  make(folder);
  for (const auto& [name, text] : texts) {
    make((folder / name).parent_path());
    write_file(folder / name, text);
  }
}

}  // namespace

void save_weights(const std::string& folder, const std::map<std::string, at::Tensor>& tensors,
                  const SaveWeightsOptions& options, const std::shared_ptr<const Mesh>& mesh) {
  require(options.max_shard_size > 0, "cannot write ", folder, ": max_shard_size is ",
          options.max_shard_size, ", expected at least one byte");
  std::shared_ptr<const Mesh> all = mesh;
  for (const auto& item : tensors) {
    check_tensor(folder, item);
    if (!all) all = mesh_of(item.second);
  }
  Metadata metadata = options.metadata;
  metadata.emplace("format", "pt");

  const std::string& stem = options.stem;
  std::vector<Items> parts = split(tensors, options.max_shard_size);
  json index = index_of(stem, parts);
  Writer writer(all);
  writer.on_first([&] {
    std::error_code error;
    fs::create_directories(folder, error);
    require(!error, "cannot make the folder ", folder, ": ", error.message());
  });
  std::set<std::string> kept;
  for (size_t i = 0; i < parts.size(); ++i) {
    std::string name = file_name(stem, i, parts.size());
    kept.insert(name);
    writer.write(fs::path(folder) / name, parts[i], metadata);
    writer.agree();
  }
  if (parts.size() > 1) {
    kept.insert(index_name(stem));
    writer.on_first([&] { keep_earlier(folder, stem, index); });
  }
  writer.commit();
  writer.on_first([&] {
    if (parts.size() > 1) write_index(fs::path(folder) / index_name(stem), index);
    remove_stale(folder, stem, kept);
    write_all(folder, options.texts);
  });
  writer.agree();
}

void write_texts(const std::string& folder, const std::map<std::string, std::string>& texts,
                 const std::shared_ptr<const Mesh>& mesh) {
  Writer writer(mesh);
  writer.on_first([&] { write_all(folder, texts); });
  writer.agree();
}

}  // namespace redco
