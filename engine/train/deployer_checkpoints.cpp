// A Deployer's checkpoints: their metadata, and the search for the last one.

#include <redco/deployer.h>

#include "../io/input_file.h"
#include "../mesh/run/agreement.h"
#include "../mesh/spmd_log.h"
#include "run_state.h"

#include <redco/error.h>
#include <redco/version.h>

#include <torch/version.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <limits>
#include <sstream>
#include <tuple>
#include <utility>
#include <vector>

namespace redco {

using namespace io;
using namespace mesh;
using namespace train;

namespace fs = std::filesystem;

namespace {

// The folder may differ between hosts; the name must not.
void log_checkpoint(const char* what, const std::string& ckpt_dir) {
  SpmdLog::get().add(std::string(what) + " the checkpoint \"" +
                     fs::path(ckpt_dir).filename().string() + "\"");
}

const std::string damaged_suffix = ".damaged";

bool is_ckpt_name(const std::string& name) {
  return !name.empty() && name[0] != '.' && name.find('/') == std::string::npos &&
         name.find(damaged_suffix) == std::string::npos;
}

// The name in last_ckpt.txt; empty if the file is missing or damaged.
std::string read_pointer(const std::string& ckpts) {
  std::string path = ckpts + "/last_ckpt.txt";
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return "";
  std::string name = read_text(path, "the name of a checkpoint", 1 << 20);
  while (!name.empty() && (name.back() == '\n' || name.back() == ' ')) name.pop_back();
  bool exists = is_ckpt_name(name) && name.find('\0') == std::string::npos &&
                fs::is_directory(ckpts + "/" + name, ignored);
  return exists ? name : "";
}

// The checkpoints in a folder, newest first: by step, then by time. A checkpoint without a readable
// step comes first, so that loading detects the damage.
std::vector<std::string> newest_first(const std::string& ckpts) {
  std::vector<std::tuple<int64_t, fs::file_time_type, std::string>> found;
  std::error_code ignored;
  for (const auto& item : fs::directory_iterator(ckpts, ignored)) {
    std::string name = item.path().filename(), folder = item.path();
    bool is_ckpt = item.is_directory(ignored) && is_ckpt_name(name) &&
                   (fs::exists(folder + "/info.json", ignored) ||
                    fs::exists(folder + "/params.safetensors.index.json", ignored));
    if (!is_ckpt) continue;
    int64_t step = std::numeric_limits<int64_t>::max();
    try {
      step = step_of(load_checkpoint_info(folder), 0);
    } catch (const Error&) {
      // Loading it reports the reason.
    }
    found.emplace_back(step, fs::last_write_time(folder, ignored), name);
  }
  std::ranges::sort(found, std::greater());
  std::vector<std::string> names;
  for (auto& item : found) names.push_back(std::move(std::get<std::string>(item)));
  return names;
}

// The checkpoints to try in order: the one of last_ckpt.txt, then the others.
std::vector<std::string> candidates(const std::string& ckpts) {
  std::vector<std::string> names = newest_first(ckpts);
  std::string last = read_pointer(ckpts);
  if (last.empty()) return names;
  std::erase(names, last);
  names.insert(names.begin(), last);
  return names;
}

// Renames a damaged checkpoint. Returns a message about the result.
std::string set_aside(const std::string& ckpts, const std::string& name) {
  std::string from = ckpts + "/" + name, to = from + damaged_suffix;
  std::error_code ignored;
  for (int i = 2; fs::exists(to, ignored); ++i)
    to = from + damaged_suffix + "-" + std::to_string(i);
  if (std::rename(from.c_str(), to.c_str()) == 0) return "It is kept as " + to;
  return "It cannot be renamed to " + to + ": " + std::strerror(errno);
}

}  // namespace

std::string Deployer::ckpts_dir() const {
  require(!workdir_.empty(), "checkpoints need a folder: make the Deployer with workdir");
  return workdir_ + "/ckpts";
}

void Deployer::save_ckpt(const std::string& ckpt_dir, Checkpoint checkpoint,
                         SaveCheckpointOptions options) {
  log_checkpoint("saves", ckpt_dir);
  Tree& info = checkpoint.info;
  info["seed"] = seed_;
  info["rng_count"] = int64_t(rng_count_);
  info["config"] = config_;
  info["versions"] = Tree::Dict{{"redco", REDCO_VERSION}, {"torch", TORCH_VERSION}};
  checkpoints_->save(ckpt_dir, checkpoint, options);
}

Checkpoint Deployer::load_ckpt(const std::string& ckpt_dir, const LoadCheckpointOptions& options,
                               bool update_rng) {
  log_checkpoint("loads", ckpt_dir);
  checkpoints_->wait();
  Checkpoint checkpoint = load_checkpoint(ckpt_dir, mesh_, options);
  const auto& info = checkpoint.info.as<Tree::Dict>();
  auto count = info.find("rng_count");
  if (update_rng && count != info.end()) rng_count_ = uint64_t(count->second.as<int64_t>());
  checkpoint.info["ckpt_dir"] = ckpt_dir;
  log_info("Loaded the checkpoint " + ckpt_dir);
  return checkpoint;
}

// Process 0 lists the checkpoints; all processes together determine whether one is intact.
std::optional<Checkpoint> Deployer::load_last_ckpt(const LoadCheckpointOptions& options,
                                                   bool update_rng) {
  checkpoints_->wait();
  const std::string ckpts = ckpts_dir();
  const bool is_first = mesh_->world().rank() == 0;
  std::string listed;
  std::exception_ptr failure;
  bool has_pointer = false;
  try {
    if (is_first) {
      has_pointer = !read_pointer(ckpts).empty();
      for (const std::string& name : candidates(ckpts)) listed += name + "/";
    }
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  throw_together(mesh_.get(), failure);
  listed = text_of_process(*mesh_, 0,
                           listed);  // other processes may see changes of a shared folder late
  std::istringstream names(listed);
  std::vector<std::pair<std::string, std::string>> damaged;  // with their errors
  for (std::string name; std::getline(names, name, '/');) {
    std::optional<Checkpoint> loaded;
    bool is_damaged = false;
    try {
      loaded = load_ckpt(ckpts + "/" + name, options, update_rng);
    } catch (const DamagedCheckpoint&) {
      is_damaged = true;
      failure = std::current_exception();
    } catch (const Error&) {
      failure = std::current_exception();
    }
    if (!loaded) {
      if (!any_process(*mesh_, is_damaged)) std::rethrow_exception(failure);
      damaged.emplace_back(name, text_of(failure));
      continue;
    }
    if (is_first && !has_pointer)
      log_info(ckpts +
               "/last_ckpt.txt is missing or names no checkpoint: resuming from the newest "
               "whole one, " +
               name);
    if (is_first)
      for (const auto& [each, error] : damaged)
        log_info("The checkpoint " + ckpts + "/" + each + " is damaged: " + error +
                 ". Resuming from " + name + " instead. " + set_aside(ckpts, each));
    return loaded;
  }
  require(damaged.empty(), "there is no whole checkpoint in ", ckpts, ": ",
          damaged.empty() ? "" : damaged.front().second,
          damaged.size() > 1 ? "; and " + std::to_string(damaged.size() - 1) + " more" : "",
          ". Restore one, or remove them to start anew");
  return std::nullopt;
}

}  // namespace redco
