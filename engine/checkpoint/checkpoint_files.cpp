// The files of a checkpoint: names, checksums and their distribution over processes.

#include "checkpoint_files.h"

#include "../formats/tensors/safetensors_format.h"
#include "../io/input_file.h"
#include "../io/strict_json.h"

#include <redco/detail/article.h>
#include <redco/error.h>
#include <redco/json.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

namespace redco::checkpoint {

using namespace io;

namespace fs = std::filesystem;

namespace {

std::string beside(const std::string& folder, const std::string& suffix) {
  fs::path path(folder);
  return (path.parent_path() / ("." + path.filename().string() + suffix)).string();
}

// The text at the end of info.json, before and after its checksum.
constexpr std::string_view before_sum = ",\n  \"xxh3\": \"", after_sum = "\"\n}\n",
                           end_signature = "\n}";
constexpr size_t sum_length = 16;

std::string sum_of(std::string_view text) {
  Checksum checksum;
  checksum.add(text.data(), text.size());
  return checksum.hex();
}

}  // namespace

std::string saving_name(const std::string& folder) { return beside(folder, ".saving"); }

std::string earlier_name(const std::string& folder) { return beside(folder, ".earlier"); }

struct Checksum::State {
  XXH3_state_t xxh3;
};

Checksum::Checksum() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->xxh3); }

Checksum::~Checksum() = default;

void Checksum::add(const void* data, size_t size) {
  XXH3_64bits_update(&state_->xxh3, data, size);
  bytes_ += int64_t(size);
}

std::string Checksum::hex() const {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx",
                static_cast<unsigned long long>(XXH3_64bits_digest(&state_->xxh3)));
  return text;
}

Tree tree_of(const FileSums& sums) {
  Tree::Dict files;
  for (const auto& [name, sum] : sums)
    files[name] = Tree::Dict{{"bytes", sum.bytes}, {"xxh3", sum.xxh3}};
  return files;
}

FileSums sums_of(const std::string& where, const Tree& tree) {
  FileSums sums;
  require(tree.is<Tree::Dict>(), where, "it is ", with_article(tree.kind()),
          ", expected an object");
  for (const auto& [name, value] : tree.as<Tree::Dict>()) {
    bool is_name = !name.empty() && name.find('/') == std::string::npos && name[0] != '.';
    require(is_name, where, in_quotes(name), " is not the name of a file in the same folder");
    const auto* fields = value.is<Tree::Dict>() ? &value.as<Tree::Dict>() : nullptr;
    bool is_sum = fields != nullptr && fields->size() == 2 && fields->count("bytes") == 1 &&
                  fields->count("xxh3") == 1 && fields->at("bytes").is<int64_t>() &&
                  fields->at("xxh3").is<std::string>();
    require(is_sum, where, in_quotes(name), " has no bytes and xxh3");
    sums[name] = {fields->at("bytes").as<int64_t>(), fields->at("xxh3").as<std::string>()};
  }
  return sums;
}

std::string info_text(const std::string& where, const Tree& info) {
  std::string text = json_from_tree(where, info, 2);
  std::string sum = sum_of(text);
  text.resize(text.size() - end_signature.size());
  return text.append(before_sum).append(sum).append(after_sum);
}

Tree info_of(const std::string& where, const std::string& text) {
  constexpr size_t length = before_sum.size() + sum_length + after_sum.size();
  std::string_view all = text, last = all.substr(all.size() - std::min(length, all.size()));
  require(last.starts_with(before_sum) && last.ends_with(after_sum) && last.size() == length, where,
          "it does not end with its XXH3-64: it is damaged or cut short");
  std::string without(all.substr(0, all.size() - length));
  without += end_signature;
  std::string sum = sum_of(without), expected(last.substr(before_sum.size(), sum_length));
  require(sum == expected, where, "its XXH3-64 is ", sum, ", expected ", in_quotes(expected),
          ": the file is damaged");
  return tree_from_json(where, without);
}

void check_file(const std::string& folder, const std::string& name, const FileSum& sum,
                const ReadInto& into) {
  std::string path = folder + "/" + name;
  InputFile file(path, "a file of a checkpoint");
  auto size = int64_t(file.size());
  require(size == sum.bytes, path, ": it has ", size, " bytes, expected ", sum.bytes,
          ": the checkpoint is not whole");
  constexpr int64_t piece = 1 << 18;  // still in the cache when its checksum is computed
  std::vector<char> passed_by(size_t(std::min(piece, std::max<int64_t>(size, 1))));
  Checksum checksum;
  int64_t at = 0;
  auto read_until = [&](int64_t end, char* to) {
    while (at < end) {
      auto n = size_t(std::min(piece, end - at));
      char* next = to == nullptr ? passed_by.data() : to;
      file.read(next, n, uint64_t(at));
      checksum.add(next, n);
      at += int64_t(n);
      if (to != nullptr) to += n;
    }
  };
  for (const auto& [first, tensor] : into) {
    read_until(first, nullptr);
    auto n = int64_t(tensor.nbytes());
    read_until(first + n, static_cast<char*>(tensor.mutable_data_ptr()));
  }
  read_until(size, nullptr);
  require(checksum.hex() == sum.xxh3, path, ": its XXH3-64 is ", checksum.hex(), ", expected ",
          sum.xxh3, ": the file is damaged");
}

std::vector<FilePlan> plan_files(const std::string& stem,
                                 const std::map<std::string, int64_t>& bytes,
                                 int64_t max_shard_size, std::vector<int64_t>& loads) {
  // Largest first, each to the writer with the smallest load.
  std::vector<const std::pair<const std::string, int64_t>*> by_size;
  for (const auto& item : bytes) by_size.push_back(&item);
  std::ranges::stable_sort(by_size, [](auto* a, auto* b) { return a->second > b->second; });
  std::map<std::string, size_t> writer_of;
  for (const auto* item : by_size) {
    auto least = std::ranges::min_element(loads);
    *least += item->second;
    writer_of[item->first] = size_t(least - loads.begin());
  }

  std::vector<FilePlan> files;
  for (size_t writer = 0; writer < loads.size(); ++writer) {
    int64_t size = 0;
    bool is_open = false;
    for (const auto& [name, n] : bytes) {
      if (writer_of[name] != writer) continue;
      if (!is_open || size + n > max_shard_size) {
        files.push_back({"", int64_t(writer), {}});
        is_open = true;
        size = 0;
      }
      files.back().tensors.push_back(name);
      size += n;
    }
  }
  if (files.empty()) files.push_back({});
  for (size_t i = 0; i < files.size(); ++i)
    files[i].name = safetensors::file_name(stem, i, files.size());
  return files;
}

}  // namespace redco::checkpoint
