// Reads the weights of a model folder.

#include <redco/weights.h>

#include "input_file.h"
#include "safetensors_format.h"
#include "strict_json.h"

#include <redco/error.h>

#include <filesystem>
#include <set>
#include <utility>

namespace redco {

using namespace io;

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// The first file of PyTorch weights in a folder; "" if there is none.
std::string find_pytorch(const fs::path& folder) {
  std::set<std::string> found;
  std::error_code ignored;
  for (const auto& item : fs::directory_iterator(folder, ignored)) {
    std::string extension = item.path().extension();
    for (const char* known : {".bin", ".pt", ".pth", ".ckpt"})
      if (extension == known) found.insert(item.path());
  }
  return found.empty() ? "" : *found.begin();
}

// The files in an index, by tensor.
std::map<std::string, std::string> read_index(const std::string& path) {
  std::string text = read_text(path, "an index of safetensors files", safetensors::max_header);
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
    if (fs::path(file).extension() == ".bin")
      safetensors::refuse_pytorch((fs::path(path).parent_path() / file).string());
    files.emplace(name, std::move(file));
  }
  return files;
}

}  // namespace

namespace safetensors {

void refuse_pytorch(const std::string& path) {
  std::string folder = fs::path(path).parent_path();
  if (folder.empty()) folder = ".";
  fail(path, ": this file was written by torch.save and can run any program when it is read; ",
       "expected safetensors. Convert it once, in Python:\n"
       "  import glob, torch\n"
       "  from safetensors.torch import save_file\n"
       "  weights = {}\n"
       "  for file in glob.glob(\"",
       folder, "/*", fs::path(path).extension().string(),
       "\"):\n"
       "      weights.update(torch.load(file, map_location=\"cpu\", weights_only=True))\n"
       "  save_file({name: t.contiguous().clone() for name, t in weights.items()},\n"
       "            \"",
       folder, "/", single_file, "\", metadata={\"format\": \"pt\"})");
}

}  // namespace safetensors

Weights::Weights(std::string path) : path_(std::move(path)) {
  std::error_code ignored;
  fs::path given(path_);
  if (!fs::is_directory(given, ignored)) {
    given.extension() == ".json" ? open_index(path_) : open_single(path_);
    return;
  }
  // Like transformers, prefer the single file.
  if (fs::exists(given / safetensors::single_file, ignored)) {
    open_single(given / safetensors::single_file);
  } else if (fs::exists(given / safetensors::index_file, ignored)) {
    open_index(given / safetensors::index_file);
  } else {
    std::string pytorch = find_pytorch(given);
    if (!pytorch.empty()) safetensors::refuse_pytorch(pytorch);
    fail(path_, ": no weights in this folder, expected ", safetensors::single_file, " or ",
         safetensors::index_file, " with the files it names");
  }
}

void Weights::open_single(const std::string& path) {
  auto file = std::make_shared<const SafetensorsFile>(path);
  for (const std::string& name : file->keys()) file_of_.emplace(name, file);
}

void Weights::open_index(const std::string& path) {
  std::map<std::string, std::string> listed = read_index(path);
  std::map<std::string, std::shared_ptr<const SafetensorsFile>> files;
  for (const auto& [name, file_name] : listed) {
    auto& file = files[file_name];
    std::string file_path = fs::path(path).parent_path() / file_name;
    if (!file) {
      std::error_code ignored;
      require(fs::exists(file_path, ignored), path, ": tensor ", in_quotes(name), " is in ",
              in_quotes(file_name), ", but there is no such file: the folder is not complete");
      file = std::make_shared<const SafetensorsFile>(file_path);
    }
    require(file->contains(name), path, ": tensor ", in_quotes(name), " is in ",
            in_quotes(file_name), ", but the file does not have it");
    file_of_.emplace(name, file);
  }
  for (const auto& [file_name, file] : files)
    for (const std::string& name : file->keys()) {
      auto place = listed.find(name);
      if (place != listed.end() && place->second == file_name) continue;
      fail(path, ": tensor ", in_quotes(name), " of the file ", in_quotes(file_name),
           place == listed.end() ? " is not listed" : " is listed in " + in_quotes(place->second));
    }
}

std::vector<std::string> Weights::keys() const {
  std::vector<std::string> names;
  for (const auto& [name, _] : file_of_) names.push_back(name);
  return names;
}

const SafetensorsFile& Weights::file(const std::string& name) const {
  auto found = file_of_.find(name);
  if (found != file_of_.end()) return *found->second;
  std::string near = nearest(name, keys());
  fail(path_, ": no tensor ", in_quotes(name), " among the ", file_of_.size(),
       near.empty() ? "" : "; the nearest is " + in_quotes(near));
}

}  // namespace redco
