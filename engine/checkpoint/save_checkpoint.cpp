// Saves checkpoints from all processes of a run.

#include <redco/checkpoint.h>
#include <redco/detail/notes.h>

#include "../formats/tensors/safetensors_format.h"
#include "../formats/tensors/safetensors_writer.h"
#include "../formats/tensors/tree_description.h"
#include "../io/atomic_file.h"
#include "../io/strict_json.h"
#include "../mesh/run/agreement.h"
#include "checkpoint_files.h"
#include "frozen_tensors.h"

#include <redco/detail/free_memory.h>
#include <redco/detail/printable.h>
#include <redco/detail/read_whole.h>
#include <redco/detail/thread_without_signals.h>
#include <redco/error.h>
#include <redco/formats.h>
#include <redco/json.h>
#include <redco/mapped_files.h>
#include <redco/moves.h>
#include <redco/sharding.h>

#include <ATen/core/grad_mode.h>

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <thread>
#include <utility>

namespace redco {

using namespace io;
using namespace mesh;

namespace fs = std::filesystem;
using namespace checkpoint;

namespace {

void remove_folder(const std::string& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  require(!error, "cannot remove ", folder, ": ", error.message());
}

void rename_folder(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) fail_to_write(to);
}

// Renames a complete folder to its final name, replacing an earlier one, which is removed.
void take_name(const std::string& saving, const std::string& folder) {
  std::string parent = fs::path(folder).parent_path();
  std::string replaced;
  if (!fs::exists(folder)) {
    rename_folder(saving, folder);
  } else if (renameat2(AT_FDCWD, saving.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) == 0) {
    replaced = saving;
  } else {
    if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) fail_to_write(folder);
    // The file system cannot exchange two names. `load_checkpoint` also looks for the intermediate
    // name.
    replaced = earlier_name(folder);
    remove_folder(replaced);
    rename_folder(folder, replaced);
    rename_folder(saving, folder);
  }
  sync_folder(parent);
  if (!replaced.empty()) remove_folder(replaced);
}

// Renamed first, so that killing the process does not leave a partial checkpoint under its name.
void remove_checkpoint(const std::string& folder) {
  std::string hidden = saving_name(folder);
  remove_folder(hidden);
  rename_folder(folder, hidden);
  remove_folder(hidden);
}

// Splits "step_12" into "step_" and 12; none for a name without a number at its end.
std::optional<std::pair<std::string, int64_t>> numbered(const std::string& name) {
  size_t digits = name.find_last_not_of("0123456789") + 1;
  if (digits == name.size() || name.size() - digits > 17) return std::nullopt;
  return std::pair(name.substr(0, digits), std::stoll(name.substr(digits)));
}

void remove_older(const fs::path& folder, int64_t n_kept) {
  auto own = numbered(folder.filename());
  if (!own) return;
  std::vector<std::pair<int64_t, std::string>> others;
  for (const auto& item : fs::directory_iterator(folder.parent_path())) {
    auto other = numbered(item.path().filename());
    if (other && other->first == own->first && other->second != own->second)
      others.emplace_back(other->second, item.path());
  }
  std::ranges::sort(others);
  for (auto n = int64_t(others.size()); n >= n_kept; --n)
    remove_checkpoint(others[others.size() - size_t(n)].second);
}

// Writes the same files to another folder.
void write_again(const std::string& from, const std::string& folder) {
  std::string saving = saving_name(folder);
  remove_folder(saving);
  std::error_code error;
  fs::create_directory(saving, error);
  require(!error, "cannot write ", folder, ": ", error.message());
  for (const auto& item : fs::directory_iterator(from)) {
    fs::path to = fs::path(saving) / item.path().filename();
    fs::create_hard_link(item.path(), to, error);
    if (!error) continue;
    fs::copy_file(item.path(), to, error);
    require(!error, "cannot write ", to.string(), ": ", error.message());
    sync_file(to);
  }
  sync_folder(saving);
  take_name(saving, folder);
}

// Saving replaces the folder, so it must be a checkpoint or empty.
void check_replaceable(const std::string& folder) {
  if (!fs::exists(folder)) return;
  require(fs::is_directory(folder), "cannot write ", folder,
          ": there is a file of this name, expected a checkpoint or nothing");
  require(fs::is_empty(folder) || fs::exists(fs::path(folder) / info_file), "cannot write ", folder,
          ": the folder holds other things, expected a checkpoint or nothing");
}

// The params or the optimizer state.
struct Part {
  Part(std::string stem, const Tree& tree, const std::string& folder,
       const SaveCheckpointOptions& options, std::vector<int64_t>& loads,
       const FrozenTensors& frozen = {})
      : stem(std::move(stem)), described(describe_tree(tree, "cannot write " + folder + ": ")) {
    // A tensor at two places of the tree has only one name.
    for (const auto& item : frozen)
      if (described.tensors.erase(item.first) > 0) named.insert(item);
    std::map<std::string, int64_t> bytes;
    for (const auto& item : described.tensors) {
      safetensors::check_tensor(folder, item);
      size_t size = c10::elementSize(type_of(item.second, options));
      bytes[item.first] = item.second.numel() * int64_t(size);
      total += bytes[item.first];
    }
    files = plan_files(this->stem, bytes, options.max_shard_size, loads);
  }

  static at::ScalarType type_of(const at::Tensor& tensor, const SaveCheckpointOptions& options) {
    return tensor.is_floating_point() ? options.float_dtype.value_or(tensor.scalar_type())
                                      : tensor.scalar_type();
  }

  // Gathers the tensors one by one; the process that writes a tensor keeps it. Starts with the
  // largest, because a gather takes temporary memory and little is kept at first.
  void collect(const SaveCheckpointOptions& options, int64_t rank) {
    at::NoGradGuard no_grad;
    Moving moving(Move::checkpoint, "save");
    std::map<std::string, int64_t> writer_of;
    for (const FilePlan& file : files)
      for (const std::string& name : file.tensors) writer_of[name] = file.writer;
    std::vector<std::pair<const std::string, at::Tensor>*> by_size;
    for (auto& item : described.tensors) by_size.push_back(&item);
    std::ranges::stable_sort(by_size, std::ranges::greater(),
                             [](auto* item) { return item->second.numel(); });
    size_t freed = 0;
    for (auto* item : by_size) {
      auto& [name, tensor] = *item;
      if (is_sharded(tensor)) freed += tensor.nbytes();
      at::Tensor whole = full_to_read(tensor);
      if (writer_of[name] == rank) {
        at::Tensor own = whole.to(at::kCPU, type_of(tensor, options)).resolve_neg().contiguous();
        // The run continues and changes the original.
        if (options.in_background && own.is_alias_of(memory_of(tensor))) own = own.clone();
        tensor = own;
      } else {
        tensor.reset();
      }
      whole.reset();
      // Freed pieces lie between kept tensors, where the next ones do not fit: return them to the
      // system.
      if (freed < (16 << 20) && item != by_size.back()) continue;
      if (std::exchange(freed, 0) > 0) return_free_memory();
    }
  }

  // Writes the files of this process.
  FileSums write(const std::string& folder, int64_t rank) {
    FileSums sums;
    for (const FilePlan& plan : files) {
      if (plan.writer != rank) continue;
      std::vector<const safetensors::Tensors::value_type*> items;
      for (const std::string& name : plan.tensors) items.push_back(&*described.tensors.find(name));
      safetensors::sort_by_dtype(items);
      OutputFile file(folder + "/" + plan.name);
      Checksum checksum;
      auto write = [&](const void* data, size_t size) {
        constexpr size_t piece = 4 << 20;  // still in the cache when it is written
        for (size_t at = 0; at < size; at += piece) {
          const char* from = static_cast<const char*>(data) + at;
          checksum.add(from, std::min(piece, size - at));
          file.write(from, std::min(piece, size - at));
        }
      };
      std::string header = safetensors::header_of(file.path(), items, {{"format", "pt"}});
      write(header.data(), header.size());
      for (const auto* item : items) {
        write(item->second.const_data_ptr(), item->second.nbytes());
        described.tensors.at(item->first).reset();  // frees its memory
      }
      file.finish();
      sums[plan.name] = {checksum.bytes(), checksum.hex()};
    }
    return sums;
  }

  std::string index() const {
    nlohmann::json weight_map = nlohmann::json::object();
    for (const FilePlan& file : files)
      for (const std::string& name : file.tensors) weight_map[name] = file.name;
    nlohmann::json index = {
        {"metadata", {{"total_size", total}, {tree_key, described.description}}},
        {"weight_map", std::move(weight_map)}};
    return index.dump(2) + "\n";
  }

  std::string stem;
  DescribedTree described;
  FrozenTensors named;  ///< in place of their values
  std::vector<FilePlan> files;
  int64_t total = 0;
};

FileSum write_small(const std::string& path, const std::string& text) {
  OutputFile file(path);
  file.write(text.data(), text.size());
  file.finish();
  Checksum checksum;
  checksum.add(text.data(), text.size());
  return {checksum.bytes(), checksum.hex()};
}

}  // namespace

// A checkpoint that is being written.
class CheckpointWriter::Save {
 public:
  Save(std::shared_ptr<const Mesh> mesh, std::string folder, const Checkpoint& checkpoint,
       SaveCheckpointOptions options)
      : mesh_(std::move(mesh)),
        key_("checkpoint/" + mesh_->notes().next_exchange()),
        folder_(std::move(folder)),
        saving_(saving_name(folder_)),
        options_(std::move(options)),
        info_(checkpoint.info) {
    std::vector<int64_t> loads(size_t(mesh_->world().size()));
    parts_.emplace_back(params_stem, checkpoint.params, folder_, options_, loads,
                        checkpoint.frozen);
    if (!parts_[0].named.empty()) info_[frozen_field] = tree_of(parts_[0].named);
    if (!checkpoint.opt_state.is_none())
      parts_.emplace_back(opt_state_stem, checkpoint.opt_state, folder_, options_, loads);
    if (!checkpoint.custom_state.is_none())
      parts_.emplace_back(custom_state_stem, checkpoint.custom_state, folder_, options_, loads);
    json_from_tree(folder_ + ": info: ", info_);  // throws for values that JSON cannot represent
    std::exception_ptr failure;
    try {
      if (is_first()) make_folder();
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
    throw_together(mesh_.get(), failure);
    for (Part& part : parts_) part.collect(options_, rank());
  }

  ~Save() {
    if (thread_.joinable()) thread_.join();
  }
  Save(const Save&) = delete;
  Save& operator=(const Save&) = delete;

  void start() {
    thread_ = thread_without_signals([this] { run(); });
  }

  bool has_ended() const { return has_ended_; }

  // To be called once.
  void finish() {
    if (thread_.joinable())
      thread_.join();
    else
      run();
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  int64_t rank() const { return mesh_->world().rank(); }
  bool is_first() const { return rank() == 0; }

  void make_folder() {
    check_replaceable(folder_);
    for (const std::string& each : options_.also) check_replaceable(each);
    std::error_code error;
    fs::create_directories(fs::path(folder_).parent_path(), error);
    if (!error) {
      remove_folder(saving_);
      fs::create_directory(saving_, error);
    }
    require(!error, "cannot write ", folder_, ": ", error.message());
  }

  void run() {
    try {
      write();
    } catch (const std::exception&) {
      failure_ = std::current_exception();
    }
    has_ended_ = true;
  }

  // Every process reports the result of its files to the first, which reports the final result to
  // all.
  void write() {
    std::string what = "writing the checkpoint " + folder_;
    Tree::Dict own;
    try {
      FileSums sums;
      for (Part& part : parts_) sums.merge(part.write(saving_, rank()));
      check_mapped_files();
      own["files"] = tree_of(sums);
    } catch (const std::exception& error) {
      own["error"] = std::string(error.what());
    }
    mesh_->notes().leave(key_ + std::to_string(rank()), json_from_tree(what, own));
    if (is_first()) {
      std::exception_ptr failure;
      try {
        complete(gather_sums(what));
      } catch (const std::exception&) {
        failure = std::current_exception();
        std::error_code ignored;
        fs::remove_all(saving_, ignored);
      }
      mesh_->notes().leave(key_ + "end", failure ? text_of(failure) : "");
      if (failure) std::rethrow_exception(failure);
    } else {
      std::string error = mesh_->notes().await(key_ + "end", what);
      require(error.empty(), printable(error));
    }
  }

  FileSums gather_sums(const std::string& what) {
    FileSums all;
    std::string error;
    for (int64_t rank = 0; rank < mesh_->world().size(); ++rank) {
      std::string note = mesh_->notes().await(key_ + std::to_string(rank), what);
      Tree told = tree_from_json(what + ": ", note);
      if (!told.as<Tree::Dict>().contains("error"))
        all.merge(sums_of(what + ": ", told.at("files")));
      else if (error.empty())
        error = (rank == 0 ? "" : "process " + std::to_string(rank) + ": ") +
                printable(told.at("error").as<std::string>());
    }
    require(error.empty(), error);
    return all;
  }

  void complete(FileSums sums) {
    for (const Part& part : parts_) {
      std::string name = safetensors::index_name(part.stem);
      sums[name] = write_small(saving_ + "/" + name, part.index());
    }
    info_[format_field] = checkpoint_format;
    info_["files"] = tree_of(sums);
    write_small(saving_ + "/" + info_file, info_text(folder_ + ": info: ", info_));
    sync_folder(saving_);
    // Writes the other folders before `folder_` appears under its name, so that a run that resumes
    // from it finds them up to date.
    for (const std::string& each : options_.also) write_again(saving_, each);
    take_name(saving_, folder_);
    if (!options_.pointer.empty())
      write_file(options_.pointer, fs::path(folder_).filename().string() + "\n");
    if (!options_.keep_last_k) return;
    remove_older(folder_, *options_.keep_last_k);
    for (const std::string& each : options_.also) remove_older(each, *options_.keep_last_k);
  }

  std::shared_ptr<const Mesh> mesh_;
  std::string key_;
  std::string folder_;
  std::string saving_;
  SaveCheckpointOptions options_;
  Tree info_;
  std::vector<Part> parts_;
  std::exception_ptr failure_;
  std::atomic<bool> has_ended_ = false;
  std::thread thread_;
};

CheckpointWriter::CheckpointWriter(std::shared_ptr<const Mesh> mesh) : mesh_(std::move(mesh)) {}

CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::save(const std::string& folder, const Checkpoint& checkpoint,
                            const SaveCheckpointOptions& options) {
  require(options.max_shard_size > 0, "cannot write ", folder, ": max_shard_size is ",
          options.max_shard_size, ", expected at least one byte");
  fs::path path = fs::absolute(folder).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // removes a trailing slash
  require(path.has_filename(), "cannot write '", folder, "': the path ends without a name");
  wait();
  running_ = std::make_unique<Save>(mesh_, path.string(), checkpoint, options);
  if (options.in_background)
    running_->start();
  else
    wait();
}

void CheckpointWriter::check() {
  if (running_ && running_->has_ended()) wait();
}

void CheckpointWriter::wait() {
  if (auto ended = std::exchange(running_, nullptr)) ended->finish();
}

void clean_checkpoints(const std::string& folder) {
  std::error_code ignored;
  std::vector<std::string> names;
  for (const auto& item : fs::directory_iterator(folder, ignored)) {
    if (item.is_directory(ignored)) names.push_back(item.path().filename());
  }
  remove_stale_files(folder);
  for (const std::string& name : names) {
    bool is_saving = name.starts_with(".") && name.ends_with(".saving");
    if (!name.starts_with(".") || !(is_saving || name.ends_with(".earlier"))) continue;
    std::string path = folder + "/" + name;
    std::string own = folder + "/" + name.substr(1, name.rfind('.') - 1);
    if (is_saving || fs::exists(own))
      remove_folder(path);
    else
      rename_folder(path, own);
  }
}

}  // namespace redco
