#pragma once

#include <redco/export.h>
#include <redco/mesh.h>
#include <redco/safetensors.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace redco {

/// The weights of a model folder in Hugging Face's layout: `model.safetensors`, or else the parts
/// that `model.safetensors.index.json` names, read as one file; without them `pytorch_model.bin` or
/// the parts in `pytorch_model.bin.index.json`. The path may also be that of a single file or of an
/// index.
///
/// Opening reads the headers of all parts and maps them. If index and parts disagree on any tensor,
/// it throws Error with the file, tensor and reason. Files of torch.save are read as by
/// `load_tree`, without running anything, and must have a dictionary of tensors.
class REDCO_API Weights {
 public:
  explicit Weights(std::string path);

  const std::string& path() const { return path_; }
  /// The names of the tensors in byte order.
  std::vector<std::string> keys() const;
  bool contains(const std::string& name) const { return part_of_.count(name) != 0; }

  /// As in SafetensorsFile. Of a file of torch.save, a tensor is copied if the file does not align
  /// it, as those before PyTorch 1.6 do not, if it is not contiguous there, or if it overlaps
  /// another: no two tensors share memory.
  at::ScalarType dtype(const std::string& name) const;
  const std::vector<int64_t>& shape(const std::string& name) const;
  at::Tensor tensor(const std::string& name) const;

 private:
  struct Part;
  void open_single(const std::string& path);
  void open_index(const std::string& path);
  const Part& part(const std::string& name) const;

  std::string path_;
  std::map<std::string, std::shared_ptr<const Part>> part_of_;  ///< by tensor name
};

struct SaveWeightsOptions {
  /// The prefix of the file names: letters, digits and "_".
  std::string stem = "model";
  /// The maximum bytes of tensors in one file; a larger tensor gets a separate file.
  int64_t max_shard_size = 5'000'000'000;
  /// Metadata of every file, in addition to "format": "pt", which transformers requires.
  std::map<std::string, std::string> metadata = {};
  /// Text files by name, such as "config.json", written after the weights.
  std::map<std::string, std::string> texts = {};
};

/// Writes weights into a folder, which is created if necessary, as one `model.safetensors` or,
/// above `max_shard_size`, as `model-00001-of-00003.safetensors` ... with an index
/// (https://huggingface.co/docs/safetensors, and `save_pretrained` of transformers). Tensors are
/// written in the order of their names.
///
/// With a `mesh`, or if a tensor is sharded, every process must call it with the same names: each
/// tensor is gathered, written by the first process and dropped before the next, and a failure
/// throws Error on all processes.
///
/// At every moment the folder holds either the earlier weights or the new ones, complete, even if
/// the program is killed (provided that the file system has hard links, if both have the same
/// number of parts). Files of earlier weights that are not replaced are removed at the end. Throws
/// Error as `save_safetensors` does.
REDCO_API void save_weights(const std::string& folder,
                            const std::map<std::string, at::Tensor>& tensors,
                            const SaveWeightsOptions& options = {},
                            const std::shared_ptr<const Mesh>& mesh = nullptr);

/// Writes text files by name into a folder, which is created if necessary; each replaces an earlier
/// file at once. With a `mesh` every process must call it: the first writes, and a failure throws
/// Error on all.
REDCO_API void write_texts(const std::string& folder,
                           const std::map<std::string, std::string>& texts,
                           const std::shared_ptr<const Mesh>& mesh = nullptr);

}  // namespace redco
