// Reads the weights of a model folder.

#include <redco/weights.h>

#include "../../io/input_file.h"
#include "../../io/strict_json.h"
#include "safetensors_format.h"
#include "torch_file.h"

#include <redco/error.h>

#include <filesystem>
#include <set>
#include <utility>

namespace redco {

using namespace io;

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

const std::string pytorch_file = "pytorch_model.bin", pytorch_index = pytorch_file + ".index.json";

// Returns a file that may contain weights, for a folder without the usual files; "" if there is
// none.
std::string find_other(const fs::path& folder) {
  std::set<std::string> found;
  std::error_code ignored;
  for (const auto& item : fs::directory_iterator(folder, ignored)) {
    std::string extension = item.path().extension();
    for (const char* known : {".safetensors", ".bin", ".pt", ".pth", ".ckpt"})
      if (extension == known) found.insert(item.path().filename());
  }
  return found.empty() ? "" : *found.begin();
}

// The files in an index, by tensor.
std::map<std::string, std::string> read_index(const std::string& path) {
  std::string text = read_text(path, "an index of weight files", safetensors::max_header);
  json index = parse_json(path + ": ", text, 8);
  require(index.is_object(), path, ": the index is ", excerpt(index.dump()),
          ", expected an object with weight_map");
  require(!index.contains("metadata") || index["metadata"].is_object(), path,
          ": metadata is not an object");
  require(index.contains("weight_map"), path, ": the field weight_map is missing");
  require(index["weight_map"].is_object(), path, ": weight_map is not an object");
  std::map<std::string, std::string> files;
  for (const auto& [name, value] : index["weight_map"].items()) {
    std::string where = path + ": tensor " + in_quotes(name) + ": the file ";
    if (!value.is_string()) fail(where, "is ", excerpt(value.dump()), ", expected a string");
    auto file = value.get<std::string>();
    bool is_name = !file.empty() && file != "." && file != ".." &&
                   file.find_first_of(std::string("/\\\0", 3)) == file.npos;
    require(is_name, where, in_quotes(file), " is not the name of a file in the same folder");
    files.emplace(name, std::move(file));
  }
  return files;
}

}  // namespace

// A file of weights of either kind.
struct Weights::Part {
  Part() = default;
  virtual ~Part() = default;
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
  virtual std::vector<std::string> keys() const = 0;
  virtual bool contains(const std::string& name) const = 0;
  virtual at::ScalarType dtype(const std::string& name) const = 0;
  virtual const std::vector<int64_t>& shape(const std::string& name) const = 0;
  virtual at::Tensor tensor(const std::string& name) const = 0;

  static std::shared_ptr<const Part> open(const std::string& path);
};

namespace {

template <class Base, class File>
struct PartOf final : Base {
  explicit PartOf(const std::string& path) : file(path) {}
  std::vector<std::string> keys() const override { return file.keys(); }
  bool contains(const std::string& name) const override { return file.contains(name); }
  at::ScalarType dtype(const std::string& name) const override { return file.dtype(name); }
  const std::vector<int64_t>& shape(const std::string& name) const override {
    return file.shape(name);
  }
  at::Tensor tensor(const std::string& name) const override { return file.tensor(name); }
  const File file;
};

}  // namespace

std::shared_ptr<const Weights::Part> Weights::Part::open(const std::string& path) {
  if (TorchFile::is_one(path)) return std::make_shared<PartOf<Part, TorchWeights>>(path);
  return std::make_shared<PartOf<Part, SafetensorsFile>>(path);
}

Weights::Weights(std::string path) : path_(std::move(path)) {
  std::error_code ignored;
  fs::path given(path_);
  if (!fs::is_directory(given, ignored)) {
    given.extension() == ".json" ? open_index(path_) : open_single(path_);
    return;
  }
  // Like transformers, prefer safetensors, and the single file.
  for (const auto& [single, index] : {std::pair(safetensors::single_file, safetensors::index_file),
                                      std::pair(pytorch_file, pytorch_index)}) {
    bool is_single = fs::exists(given / single, ignored);
    if (!is_single && !fs::exists(given / index, ignored)) continue;
    is_single ? open_single(given / single) : open_index(given / index);
    return;
  }
  std::string other = find_other(given);
  fail(path_, ": no weights in this folder, expected ", safetensors::single_file, ", ",
       safetensors::index_file, " with the files it names, or the same of ", pytorch_file,
       other.empty() ? "" : "; it has " + in_quotes(other));
}

void Weights::open_single(const std::string& path) {
  auto file = Part::open(path);
  for (const std::string& name : file->keys()) part_of_.emplace(name, file);
}

void Weights::open_index(const std::string& path) {
  std::map<std::string, std::string> listed = read_index(path);
  std::map<std::string, std::shared_ptr<const Part>> files;
  for (const auto& [name, file_name] : listed) {
    auto& file = files[file_name];
    std::string file_path = fs::path(path).parent_path() / file_name;
    if (!file) {
      std::error_code ignored;
      require(fs::exists(file_path, ignored), path, ": tensor ", in_quotes(name), " is in ",
              in_quotes(file_name), ", but there is no such file: the folder is not complete");
      file = Part::open(file_path);
    }
    require(file->contains(name), path, ": tensor ", in_quotes(name), " is in ",
            in_quotes(file_name), ", but the file does not have it");
    part_of_.emplace(name, file);
  }
  for (const auto& [file_name, file] : files)
    for (const std::string& name : file->keys()) {
      auto place = listed.find(name);
      if (place != listed.end() && place->second == file_name) continue;
      fail(path, ": tensor ", in_quotes(name), " of the file ", in_quotes(file_name),
           place == listed.end() ? " is not listed" : " is listed in " + in_quotes(place->second));
    }
}

at::ScalarType Weights::dtype(const std::string& name) const { return part(name).dtype(name); }

const std::vector<int64_t>& Weights::shape(const std::string& name) const {
  return part(name).shape(name);
}

at::Tensor Weights::tensor(const std::string& name) const { return part(name).tensor(name); }

std::vector<std::string> Weights::keys() const {
  std::vector<std::string> names;
  for (const auto& [name, _] : part_of_) names.push_back(name);
  return names;
}

const Weights::Part& Weights::part(const std::string& name) const {
  auto found = part_of_.find(name);
  if (found != part_of_.end()) return *found->second;
  std::string near = nearest(name, keys());
  fail(path_, ": no tensor ", in_quotes(name), " among the ", part_of_.size(),
       near.empty() ? "" : "; the nearest is " + in_quotes(near));
}

}  // namespace redco
