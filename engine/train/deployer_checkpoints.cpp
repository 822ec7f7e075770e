// A Deployer's checkpoints: what they say beside tensors, and which is the last.

#include <redco/deployer.h>

#include "../io/input_file.h"
#include "../mesh/agreement.h"
#include "../mesh/spmd_log.h"

#include <redco/error.h>
#include <redco/version.h>

#include <torch/version.h>

#include <exception>
#include <filesystem>
#include <utility>

namespace redco {

namespace fs = std::filesystem;

namespace {

// Hosts may have their own folders; the name is the same.
void record_checkpoint(const char* what, const std::string& ckpt_dir) {
  SpmdLog::get().add(std::string(what) + " the checkpoint \"" +
                     fs::path(ckpt_dir).filename().string() + "\"");
}

}  // namespace

std::string Deployer::ckpts_dir() const {
  require(!workdir_.empty(), "checkpoints need a folder: make the Deployer with workdir");
  return workdir_ + "/ckpts";
}

void Deployer::save_ckpt(const std::string& ckpt_dir, Checkpoint checkpoint,
                         SaveCheckpointOptions options) {
  record_checkpoint("saves", ckpt_dir);
  Tree& info = checkpoint.info;
  info["seed"] = seed_;
  info["rng_count"] = int64_t(rng_count_);
  info["config"] = config_;
  info["versions"] = Tree::Dict{{"redco", REDCO_VERSION}, {"torch", TORCH_VERSION}};
  checkpoints_.save(ckpt_dir, checkpoint, options);
}

Checkpoint Deployer::load_ckpt(const std::string& ckpt_dir, const LoadCheckpointOptions& options,
                               bool update_rng) {
  record_checkpoint("loads", ckpt_dir);
  checkpoints_.wait();
  Checkpoint checkpoint = load_checkpoint(ckpt_dir, mesh_, options);
  const auto& info = checkpoint.info.as<Tree::Dict>();
  auto count = info.find("rng_count");
  if (update_rng && count != info.end()) rng_count_ = uint64_t(count->second.as<int64_t>());
  checkpoint.info["ckpt_dir"] = ckpt_dir;
  log_info("Loaded the checkpoint " + ckpt_dir);
  return checkpoint;
}

std::optional<Checkpoint> Deployer::load_last_ckpt(const LoadCheckpointOptions& options,
                                                   bool update_rng) {
  checkpoints_.wait();
  std::string pointer = ckpts_dir() + "/last_ckpt.txt", name;
  std::exception_ptr failure;
  try {
    std::error_code ignored;
    if (fs::exists(pointer, ignored)) {
      name = read_text(pointer, "the name of a checkpoint", 4096);
      while (!name.empty() && (name.back() == '\n' || name.back() == ' ')) name.pop_back();
      require(!name.empty() && name.find('/') == std::string::npos, pointer,
              ": expected the name of a checkpoint beside this file");
    }
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  throw_together(mesh_.get(), failure);
  name = text_of_process(*mesh_, 0, name);  // a shared folder may show itself late to others
  if (name.empty()) return std::nullopt;
  return load_ckpt(ckpts_dir() + "/" + name, options, update_rng);
}

}  // namespace redco
