#include <redco/checkpoint.h>

#include "../mesh/agreement.h"
#include "checkpoint_files.h"
#include "input_file.h"
#include "safetensors_format.h"
#include "strict_json.h"
#include "tree_description.h"

#include <redco/error.h>
#include <redco/json.h>
#include <redco/sharding.h>
#include <redco/weights.h>

#include <ATen/ops/empty.h>

#include <atomic>
#include <exception>
#include <filesystem>
#include <thread>
#include <utility>

namespace redco {

namespace fs = std::filesystem;
using namespace checkpoint;

namespace {

struct Info {
  std::string folder;
  Tree tree;
  FileSums sums;
};

Info read_info(const std::string& folder) {
  Info info{folder, {}, {}};
  std::error_code ignored;
  if (!fs::exists(folder, ignored) && fs::exists(earlier_name(folder), ignored))
    info.folder = earlier_name(folder);  // its replacing was interrupted
  require(fs::is_directory(info.folder, ignored), folder, ": there is no such checkpoint");
  std::string path = info.folder + "/" + kInfo;
  require(fs::exists(path, ignored), folder, ": there is no ", kInfo,
          " in it, so it is no checkpoint");
  info.tree = tree_from_json(path + ": ", read_text(path, "info.json", safetensors::kMaxHeader));
  require(info.tree.is<Tree::Dict>() && info.tree.as<Tree::Dict>().contains("files"), path,
          ": the field files is missing");
  info.sums = sums_of(path + ": files: ", info.tree.at("files"));
  info.tree.as<Tree::Dict>().erase("files");
  return info;
}

// Every n-th file, on the cores that are this process's.
void check_files(const Info& info, const Processes& processes) {
  std::vector<std::pair<std::string, FileSum>> files(info.sums.begin(), info.sums.end());
  std::vector<std::exception_ptr> failures(files.size());
  std::atomic<size_t> next = static_cast<size_t>(processes.rank);
  auto work = [&] {
    for (size_t i; (i = next.fetch_add(static_cast<size_t>(processes.size))) < files.size();) {
      try {
        check_file(info.folder, files[i].first, files[i].second);
      } catch (const std::exception&) {
        failures[i] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> threads;
  int64_t n_cores = std::thread::hardware_concurrency();
  for (int64_t i = processes.local_size; i + processes.local_size <= n_cores;
       i += processes.local_size)
    threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  for (const auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

// What an index says of the shape of the tree.
std::string description_of(const std::string& path) {
  std::string text = read_text(path, "an index of safetensors files", safetensors::kMaxHeader);
  nlohmann::json index = parse_json(path + ": ", text, 8);
  require(index.is_object() && index.contains("metadata") && index["metadata"].is_object() &&
              index["metadata"].contains(kTree) && index["metadata"][kTree].is_string(),
          path, ": metadata has no text ", kTree);
  return index["metadata"][kTree].get<std::string>();
}

Tree read_part(const Info& info, const std::string& stem,
               const std::function<at::Tensor(const Weights&, const std::string&)>& tensor_of) {
  std::string path = info.folder + "/" + index_name(stem);
  require(info.sums.count(index_name(stem)) != 0, info.folder, ": there is no ", stem, " in it");
  Weights weights(path);
  return read_tree(description_of(path), path + ": ", weights.keys(),
                   [&](const std::string& name) { return tensor_of(weights, name); });
}

}  // namespace

Checkpoint load_checkpoint(const std::string& folder, const std::shared_ptr<const Mesh>& mesh,
                           const LoadCheckpointOptions& options) {
  Group& world = mesh->world();
  auto tensor_of = [&](const Weights& weights, const std::string& name) {
    at::Tensor mapped = weights.tensor(name);
    auto type = mapped.is_floating_point() ? options.float_dtype.value_or(mapped.scalar_type())
                                           : mapped.scalar_type();
    if (world.size() > 1 && type == mapped.scalar_type()) return mapped;
    at::TensorOptions like = mapped.options().dtype(type);
    at::Tensor own = mapped.dim() > 1 ? empty_spread(mapped.sizes(), like, mesh)
                                      : at::empty(mapped.sizes(), like);
    return own.copy_(mapped);
  };
  Checkpoint checkpoint;
  Info info;
  std::exception_ptr failure;
  try {
    info = read_info(folder);
    check_files(info, mesh->processes());
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  throw_together(mesh.get(), failure);
  try {
    if (options.params) checkpoint.params = read_part(info, kParams, tensor_of);
    if (options.opt_state && info.sums.count(index_name(kOptState)) != 0)
      checkpoint.opt_state = read_part(info, kOptState, tensor_of);
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  throw_together(mesh.get(), failure);
  checkpoint.info = std::move(info.tree);
  return checkpoint;
}

Tree load_params_shape(const std::string& folder) {
  return read_part(read_info(folder), kParams, [](const Weights& weights, const std::string& name) {
    return at::empty(weights.shape(name), at::TensorOptions(weights.dtype(name)).device(at::kMeta));
  });
}

}  // namespace redco
