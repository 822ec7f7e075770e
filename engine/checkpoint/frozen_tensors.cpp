// Names the frozen parameters of a checkpoint in info.json, and finds their values again.

#include "frozen_tensors.h"

#include "../formats/tensors/safetensors_format.h"
#include "../io/strict_json.h"
#include "../mesh/run/agreement.h"
#include "checkpoint_files.h"

#include <redco/detail/article.h>
#include <redco/detail/printable.h>
#include <redco/error.h>
#include <redco/sharding.h>
#include <redco/tensor_source.h>
#include <redco/weights.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

namespace redco {

std::string checksum_of(const at::Tensor& tensor, at::ScalarType dtype) {
  at::NoGradGuard no_grad;
  checkpoint::Checksum checksum;
  at::Tensor flat = tensor.resolve_neg().contiguous().view(-1);
  constexpr int64_t piece = 1 << 20;
  for (int64_t at = 0; at < flat.numel(); at += piece) {
    at::Tensor part = flat.narrow(0, at, std::min(piece, flat.numel() - at)).to(at::kCPU, dtype);
    checksum.add(part.const_data_ptr(), part.nbytes());
  }
  return checksum.hex();
}

namespace checkpoint {

using namespace io;
using namespace mesh;

namespace {

const char* const how_to_give =
    "Give their values, as in load_last_ckpt { params = params }, where params is the tree with "
    "which the run began";

// Where the values of a tensor are.
struct Found {
  at::Tensor given;  ///< undefined: the file has it
  at::Tensor file;
};

std::string size_of(const FrozenTensor& frozen) {
  std::string text;
  for (int64_t size : frozen.sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "] " + safetensors::find_dtype(frozen.dtype)->name;
}

// The tensor in its file; throws Error if it is not there.
at::Tensor read_again(const FrozenTensor& frozen,
                      std::map<std::string, std::shared_ptr<Weights>>& files) {
  auto& file = files[frozen.source.path];
  if (!file) file = std::make_shared<Weights>(frozen.source.path);
  at::Tensor tensor = file->tensor(frozen.source.name);
  require(tensor.sizes() == frozen.sizes, frozen.source.path, ": ", frozen.source.name, " is ",
          tensor.sizes(), ", expected ", size_of(frozen));
  return tensor;
}

std::map<std::string, Found> find_all(const std::string& folder, const FrozenTensors& frozen,
                                      const Tree& given) {
  std::map<std::string, at::Tensor> given_by_name;
  for (auto& [name, tensor] : named_tensors(given)) given_by_name.emplace(name, tensor);
  std::map<std::string, std::shared_ptr<Weights>> files;
  std::map<std::string, Found> all;
  for (const auto& [name, tensor] : frozen) {
    auto found = given_by_name.find(name);
    if (found != given_by_name.end()) {
      const at::Tensor& value = found->second;
      bool fits = value.sizes() == tensor.sizes && value.scalar_type() == tensor.dtype;
      require(fits, folder, ": the frozen parameter '", name, "' is ", size_of(tensor),
              " in the run, and the given one is ", value.sizes(), " ",
              c10::toString(value.scalar_type()));
      all[name].given = value;
      continue;
    }
    try {
      all[name].file = read_again(tensor, files);
    } catch (const Interrupted&) {
      throw;
    } catch (const Error& error) {
      fail(folder, ": it has ", frozen.size(), " frozen parameter", frozen.size() > 1 ? "s" : "",
           " only by name; '", name, "' was read from ", printable(tensor.source.path),
           ", where it cannot be read again: ", error.what(), ". ", how_to_give);
    }
  }
  return all;
}

// The first process of each host verifies all values; every process takes part in gathering sharded
// tensors.
void verify(const std::string& folder, const FrozenTensors& frozen,
            const std::map<std::string, Found>& all, const std::shared_ptr<const Mesh>& mesh) {
  bool is_first = mesh->processes().local_rank == 0;
  std::string changed;
  int64_t n_changed = 0;
  for (const auto& [name, tensor] : frozen) {
    const Found& found = all.at(name);
    at::Tensor whole = found.given.defined() ? full(found.given.detach()) : found.file;
    if (!is_first) continue;
    std::string sum = checksum_of(whole, tensor.dtype);
    if (sum == tensor.xxh3 || n_changed++ > 0) continue;
    changed =
        "the frozen parameter '" + name + "' has other values " +
        (found.given.defined() ? "in the given tree" : "in " + printable(tensor.source.path)) +
        " than it had in the run: its XXH3-64 is " + sum + ", expected " + tensor.xxh3;
  }
  require(n_changed == 0, folder, ": ", changed,
          n_changed > 1 ? ", and " + std::to_string(n_changed - 1) + " more have" : "",
          ". Use the base that the run began with (read from ",
          printable(frozen.empty() ? "" : frozen.begin()->second.source.path), ")");
}

}  // namespace

Tree tree_of(const FrozenTensors& frozen) {
  Tree::Dict all;
  for (const auto& [name, tensor] : frozen) {
    Tree::List sizes(tensor.sizes.begin(), tensor.sizes.end());
    all[name] = Tree::Dict{{"dtype", safetensors::find_dtype(tensor.dtype)->name},
                           {"shape", std::move(sizes)},
                           {"xxh3", tensor.xxh3},
                           {"file", tensor.source.path},
                           {"tensor", tensor.source.name}};
  }
  return all;
}

FrozenTensors frozen_of(const std::string& where, const Tree& tree) {
  FrozenTensors all;
  require(tree.is<Tree::Dict>(), where, "it is ", with_article(tree.kind()),
          ", expected an object");
  for (const auto& [name, value] : tree.as<Tree::Dict>()) {
    auto text = [&, &name = name, &value = value](const char* field) {
      const Tree* found = nullptr;
      if (value.is<Tree::Dict>() && value.as<Tree::Dict>().contains(field))
        found = &value.as<Tree::Dict>().at(field);
      require(found != nullptr && found->is<std::string>(), where, in_quotes(name), " has no ",
              field);
      return found->as<std::string>();
    };
    FrozenTensor tensor;
    std::string dtype = text("dtype");
    const auto* known = safetensors::find_dtype(dtype);
    require(known != std::end(safetensors::dtypes), where, in_quotes(name),
            " has the unknown dtype ", in_quotes(dtype));
    tensor.dtype = known->dtype;
    tensor.xxh3 = text("xxh3");
    tensor.source = {text("file"), text("tensor")};
    // An empty list comes back from JSON as an empty dictionary.
    const auto& fields = value.as<Tree::Dict>();
    auto shape = fields.find("shape");
    bool is_list = shape != fields.end() && shape->second.is<Tree::List>();
    bool is_empty = shape != fields.end() && shape->second.is<Tree::Dict>() &&
                    shape->second.as<Tree::Dict>().empty();
    require(is_list || is_empty, where, in_quotes(name), " has no shape");
    if (is_list)
      for (const Tree& size : shape->second.as<Tree::List>()) {
        require(size.is<int64_t>() && size.as<int64_t>() >= 0, where, in_quotes(name),
                " has a shape with other values than sizes");
        tensor.sizes.push_back(size.as<int64_t>());
      }
    all.emplace(name, std::move(tensor));
  }
  return all;
}

std::map<std::string, at::Tensor> frozen_values(const std::string& folder,
                                                const FrozenTensors& frozen, const Tree& given,
                                                const std::shared_ptr<const Mesh>& mesh) {
  std::map<std::string, Found> all;
  std::exception_ptr failure;
  try {
    all = find_all(folder, frozen, given);
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  throw_together(mesh.get(), failure);
  try {
    verify(folder, frozen, all, mesh);
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  throw_together(mesh.get(), failure);
  at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> values;
  for (auto& [name, found] : all) {
    const FrozenTensor& tensor = frozen.at(name);
    at::Tensor value = found.given;
    if (!value.defined() && found.file.scalar_type() == tensor.dtype) value = found.file;
    if (!value.defined())
      value = empty_spread(tensor.sizes, at::TensorOptions(tensor.dtype), mesh).copy_(found.file);
    set_source(value, tensor.source);
    values.emplace(name, std::move(value));
  }
  return values;
}

}  // namespace checkpoint

}  // namespace redco
