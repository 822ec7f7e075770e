// Loads checkpoints and verifies their files.

#include <redco/checkpoint.h>

#include "../formats/tensors/safetensors_format.h"
#include "../formats/tensors/tree_description.h"
#include "../io/input_file.h"
#include "../io/strict_json.h"
#include "../mesh/run/agreement.h"
#include "checkpoint_files.h"
#include "frozen_tensors.h"

#include <redco/detail/article.h>
#include <redco/detail/cores.h>
#include <redco/detail/thread_without_signals.h>
#include <redco/error.h>
#include <redco/formats.h>
#include <redco/json.h>
#include <redco/safetensors.h>
#include <redco/sharding.h>
#include <redco/weights.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

namespace redco {

using namespace io;
using namespace mesh;

namespace fs = std::filesystem;
using namespace checkpoint;

namespace {

struct Info {
  std::string folder;
  Tree tree;
  FileSums sums;
  FrozenTensors frozen;
};

// Calls `read` and converts its errors to DamagedCheckpoint.
template <class Read>
auto reading(const Read& read) {
  try {
    return read();
  } catch (const Interrupted&) {
    throw;
  } catch (const UnreadableFile&) {
    throw;
  } catch (const UnknownFormat&) {
    throw;
  } catch (const Error& error) {
    throw DamagedCheckpoint(error.what());
  }
}

Info read_info(const std::string& folder) {
  Info info{folder, {}, {}, {}};
  std::error_code ignored;
  if (!fs::exists(folder, ignored) && fs::exists(earlier_name(folder), ignored))
    info.folder = earlier_name(folder);  // its replacement was interrupted
  require(fs::is_directory(info.folder, ignored), folder, ": there is no such checkpoint");
  std::string path = info.folder + "/" + info_file;
  require(fs::exists(path, ignored), folder, ": there is no ", info_file,
          " in it, so it is no checkpoint");
  info.tree = info_of(path + ": ", read_text(path, "info.json", safetensors::max_header));
  require(info.tree.is<Tree::Dict>(), path, ": it is ", with_article(info.tree.kind()),
          ", expected an object");
  auto& fields = info.tree.as<Tree::Dict>();
  auto format = fields.find(format_field);
  bool is_number = format != fields.end() && format->second.is<int64_t>();
  check_format(path + ": ", is_number ? format->second.as<int64_t>() : 0, checkpoint_format);
  require(fields.contains("files"), path, ": the field files is missing");
  info.sums = sums_of(path + ": files: ", info.tree.at("files"));
  if (fields.contains(frozen_field))
    info.frozen = frozen_of(path + ": " + frozen_field + ": ", fields.at(frozen_field));
  fields.erase(format_field);
  fields.erase("files");
  fields.erase(frozen_field);
  return info;
}

// The part of a checkpoint that a file belongs to.
const std::string& stem_of(const std::string& file) {
  for (const std::string* stem : {&opt_state_stem, &custom_state_stem})
    if (file.starts_with(*stem)) return *stem;
  return params_stem;
}

bool is_asked(const std::string& stem, const LoadCheckpointOptions& options) {
  if (stem == params_stem) return options.params;
  return stem != opt_state_stem || options.opt_state;
}

// Verifies this process's share of the requested files, on its share of the cores.
void check_files(const Info& info, const std::map<std::string, ReadInto>& into,
                 const LoadCheckpointOptions& options, const Processes& processes) {
  std::vector<std::string> files;
  for (const auto& [name, sum] : info.sums)
    if (is_asked(stem_of(name), options)) files.push_back(name);
  std::vector<std::exception_ptr> failures(files.size());
  std::atomic<size_t> next = size_t(processes.rank);
  auto work = [&] {
    for (size_t i; (i = next.fetch_add(size_t(processes.size))) < files.size();) {
      try {
        auto own = into.find(files[i]);
        check_file(info.folder, files[i], info.sums.at(files[i]),
                   own == into.end() ? ReadInto() : own->second);
      } catch (const std::exception&) {
        failures[i] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> threads;
  auto n_threads = std::min<size_t>(size_t(cores_per_process(processes.local_size)), files.size());
  try {
    while (threads.size() + 1 < n_threads) threads.push_back(thread_without_signals(work));
  } catch (const std::system_error&) {
    // The existing threads do the work.
  }
  work();
  for (std::thread& thread : threads) thread.join();
  for (const auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

// The larger tensors of a process that runs alone. It needs all of each file, so it reads the
// tensors while it verifies the files.
struct OwnTensors {
  OwnTensors(const Info& info, const LoadCheckpointOptions& options,
             const std::shared_ptr<const Mesh>& mesh) {
    for (const auto& [name, sum] : info.sums) {
      const std::string& stem = stem_of(name);
      if (!is_asked(stem, options) || !name.ends_with(".safetensors")) continue;
      try {
        SafetensorsFile file(info.folder + "/" + name);
        for (const std::string& key : file.keys()) {
          at::ScalarType type = file.dtype(key);
          if (!at::isFloatingType(type) || options.float_dtype.value_or(type) != type) continue;
          int64_t n = c10::multiply_integers(file.shape(key));
          if (n < 1 << 12) continue;
          at::Tensor own = empty_spread(file.shape(key), type, mesh);
          into[name][int64_t(file.offset(key))] = own;
          tensors[stem + "/" + key] = own;
        }
      } catch (const Error&) {
        into.erase(name);  // the verification reports the fault
      }
    }
  }

  std::map<std::string, ReadInto> into;       ///< by file
  std::map<std::string, at::Tensor> tensors;  ///< by "params/NAME"
};

// The description of the tree in an index.
std::string description_of(const std::string& path) {
  std::string text = read_text(path, "an index of safetensors files", safetensors::max_header);
  nlohmann::json index = parse_json(path + ": ", text, 8);
  require(index.is_object() && index.contains("metadata") && index["metadata"].is_object() &&
              index["metadata"].contains(tree_key) && index["metadata"][tree_key].is_string(),
          path, ": metadata has no text ", tree_key);
  return index["metadata"][tree_key].get<std::string>();
}

Tree read_part(const Info& info, const std::string& stem,
               const std::function<at::Tensor(const std::string& stem, const Weights&,
                                              const std::string& name)>& tensor_of) {
  std::string path = info.folder + "/" + safetensors::index_name(stem);
  require(info.sums.count(safetensors::index_name(stem)) != 0, info.folder, ": there is no ", stem,
          " in it");
  Weights weights(path);
  std::vector<std::string> names = weights.keys();
  if (stem == params_stem)
    for (const auto& [name, tensor] : info.frozen) names.push_back(name);
  return read_tree(description_of(path), path + ": ", names,
                   [&](const std::string& name) { return tensor_of(stem, weights, name); });
}

}  // namespace

Checkpoint load_checkpoint(const std::string& folder, const std::shared_ptr<const Mesh>& mesh,
                           const LoadCheckpointOptions& options) {
  Group& world = mesh->world();
  std::map<std::string, at::Tensor> read, frozen;
  auto tensor_of = [&](const std::string& stem, const Weights& weights, const std::string& name) {
    auto found = read.find(stem + "/" + name);
    if (found != read.end()) return found->second;
    if (auto named = frozen.find(name); stem == params_stem && named != frozen.end()) {
      at::ScalarType type = named->second.scalar_type();
      if (named->second.is_floating_point()) type = options.float_dtype.value_or(type);
      return named->second.to(type);
    }
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
    reading([&] {
      info = read_info(folder);
      std::optional<OwnTensors> own;
      if (world.size() == 1) own.emplace(info, options, mesh);
      check_files(info, own ? own->into : std::map<std::string, ReadInto>(), options,
                  mesh->processes());
      if (own) read = std::move(own->tensors);
    });
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  throw_together(mesh.get(), failure);
  if (options.params) frozen = frozen_values(folder, info.frozen, options.frozen, mesh);
  try {
    reading([&] {
      if (options.params) checkpoint.params = read_part(info, params_stem, tensor_of);
      if (options.opt_state && info.sums.count(safetensors::index_name(opt_state_stem)) != 0)
        checkpoint.opt_state = read_part(info, opt_state_stem, tensor_of);
      if (info.sums.count(safetensors::index_name(custom_state_stem)) != 0)
        checkpoint.custom_state = read_part(info, custom_state_stem, tensor_of);
    });
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  throw_together(mesh.get(), failure);
  checkpoint.info = std::move(info.tree);
  return checkpoint;
}

Tree load_checkpoint_info(const std::string& folder) {
  return reading([&] { return read_info(folder).tree; });
}

Tree load_params_shape(const std::string& folder) {
  return reading([&] {
    Info info = read_info(folder);
    auto on_meta = [&](const std::string&, const Weights& weights, const std::string& name) {
      auto frozen = info.frozen.find(name);
      bool is_frozen = frozen != info.frozen.end();
      auto type = is_frozen ? frozen->second.dtype : weights.dtype(name);
      return at::empty(is_frozen ? frozen->second.sizes : weights.shape(name),
                       at::TensorOptions(type).device(at::kMeta));
    };
    return read_part(info, params_stem, on_meta);
  });
}

}  // namespace redco
