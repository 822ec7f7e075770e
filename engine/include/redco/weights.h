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

/// The weights of a model folder as Hugging Face writes them: `model.safetensors`, or else the
/// parts that `model.safetensors.index.json` names, seen as one file. The path may also be that of
/// the one file or of the index.
///
/// Opening reads the headers of all parts and maps them. A folder whose index and parts do not
/// agree in every tensor is an Error that names file, tensor and reason; one that has only files of
/// torch.save is refused with how to convert them.
class REDCO_API Weights {
 public:
  explicit Weights(std::string path);

  const std::string& path() const { return path_; }
  /// The names of the tensors, ordered by their bytes.
  std::vector<std::string> keys() const;
  bool contains(const std::string& name) const { return file_of_.count(name) != 0; }

  /// As those of SafetensorsFile.
  at::ScalarType dtype(const std::string& name) const { return file(name).dtype(name); }
  const std::vector<int64_t>& shape(const std::string& name) const {
    return file(name).shape(name);
  }
  at::Tensor tensor(const std::string& name) const { return file(name).tensor(name); }

 private:
  void open_single(const std::string& path);
  void open_index(const std::string& path);
  const SafetensorsFile& file(const std::string& name) const;

  std::string path_;
  std::map<std::string, std::shared_ptr<const SafetensorsFile>> file_of_;  ///< by tensor
};

struct SaveWeightsOptions {
  /// What the files' names begin with: letters, digits and "_".
  std::string stem = "model";
  /// Bytes of tensors in one file; a tensor that is larger has a file of its own.
  int64_t max_shard_size = 5'000'000'000;
  /// Noted in every file, beside "format": "pt", which transformers asks for.
  std::map<std::string, std::string> metadata = {};
  /// Texts by file names, "config.json", written beside the weights in the end.
  std::map<std::string, std::string> texts = {};
};

/// Writes weights into a folder, which is made if need be, as one `model.safetensors` or, above
/// `max_shard_size`, as `model-00001-of-00003.safetensors` ... with an index
/// (https://huggingface.co/docs/safetensors, and `save_pretrained` of transformers). Tensors are
/// taken in the order of their names.
///
/// Given a `mesh`, or a tensor that is sharded, every process must call it with the same names: each
/// tensor is brought together in its turn and dropped after, the first process writes, and a
/// failure is an Error on all.
///
/// The folder has the earlier weights or the new ones at every moment, whole: a program that is
/// killed leaves no mixture (where the file system has hard links, if both have as many parts).
/// Files of earlier weights that are not replaced are removed in the end.
/// Throws Error as `save_safetensors` does.
REDCO_API void save_weights(const std::string& folder,
                            const std::map<std::string, at::Tensor>& tensors,
                            const SaveWeightsOptions& options = {},
                            const std::shared_ptr<const Mesh>& mesh = nullptr);

}  // namespace redco
