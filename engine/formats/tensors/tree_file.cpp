// Saves trees to safetensors files.

#include <redco/safetensors.h>

#include "tree_description.h"

namespace redco {

using namespace io;

void save_tree(const std::string& path, const Tree& tree) {
  DescribedTree described = describe_tree(tree, "cannot write " + path + ": ");
  // Programs that read checkpoints require "format" if there is any metadata.
  save_safetensors(path, described.tensors, {{"format", "pt"}, {tree_key, described.description}});
}

}  // namespace redco
