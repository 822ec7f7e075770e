// Loads trees from safetensors files and from those of PyTorch.

#include <redco/safetensors.h>

#include "torch_file.h"
#include "tree_description.h"

#include <redco/error.h>

namespace redco {

using namespace io;

Tree load_tree(const std::string& path) {
  if (TorchFile::is_one(path)) return TorchFile(path).tree();
  SafetensorsFile file(path);
  auto description = file.metadata().find(tree_key);
  if (description == file.metadata().end()) {
    Tree::Dict dict;
    for (const std::string& name : file.keys()) dict.emplace(name, file.tensor(name));
    return dict;
  }
  return read_tree(description->second,
                   path + ": the tree in the metadata '" + tree_key + "': ", file.keys(),
                   [&](const std::string& name) { return file.tensor(name); });
}

}  // namespace redco
