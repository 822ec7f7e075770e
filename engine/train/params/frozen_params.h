#pragma once

#include <redco/checkpoint.h>
#include <redco/mesh.h>
#include <redco/tree.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace redco::train {

/// The parameters of a run that its checkpoints name instead of containing them: they are not
/// trained, were read from files of weights, and have not changed since, as `source_of` says.
class FrozenParams {
 public:
  /// Notes `given`, which the run keeps as `own`, if it was read from a file.
  void add(const std::string& name, const at::Tensor& given, const at::Tensor& own);
  /// Must be called when the tensors of the run are others with the same values.
  void replaced(const std::vector<NamedTensor>& params);

  /// Returns those of `params` that have not changed; others are forgotten. Every process must call
  /// it: the first one decides. The first call reads all of them once.
  FrozenTensors unchanged(const std::vector<NamedTensor>& params, const Mesh& mesh);

 private:
  struct Entry {
    FrozenTensor tensor;  ///< without a checksum until it is known
    uint32_t version = 0;
  };
  std::map<std::string, Entry> entries_;
};

}  // namespace redco::train
