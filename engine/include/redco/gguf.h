#pragma once

#include <redco/export.h>
#include <redco/tree.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace redco {

/// A model file of llama.cpp in GGUF versions 2 and 3, little-endian: metadata, then tensors, many
/// of them quantised in blocks (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
///
/// Opening the file reads and checks everything except the data, which is mapped. A file that
/// violates the format, or has a tensor of an unsupported type, raises an Error that names the
/// file, the tensor or key, and the reason. The file must not be truncated or written in place
/// while the object or its tensors exist.
class REDCO_API GgufFile {
 public:
  explicit GgufFile(const std::string& path);

  const std::string& path() const { return path_; }
  /// Values by key ("general.architecture"): numbers, booleans, strings and lists of these.
  const Tree::Dict& metadata() const { return metadata_; }
  /// The names of the tensors in byte order.
  std::vector<std::string> keys() const;
  bool contains(const std::string& name) const { return entries_.count(name) != 0; }

  /// The dtype that `tensor` returns: float32 for a quantised tensor.
  at::ScalarType dtype(const std::string& name) const;
  /// The shape in PyTorch's order, which is the reverse of the file's.
  const std::vector<int64_t>& shape(const std::string& name) const { return entry(name).shape; }

  /// The tensor, on the CPU and contiguous. F32, F16 and BF16 tensors are mapped, as those of
  /// SafetensorsFile are; quantised ones are dequantised into new memory. Throws Error, with the
  /// nearest name, if there is no tensor of this name.
  at::Tensor tensor(const std::string& name) const;
  /// The name of a quantised tensor's BlockType (redco/quantized.h); null for others.
  const char* quantized_type(const std::string& name) const;
  /// The blocks of a quantised tensor, mapped. Throws Error for another.
  at::Tensor blocks(const std::string& name) const;

 private:
  struct Entry {
    uint32_t type;  ///< ggml's type number
    std::vector<int64_t> shape;
    size_t begin;  ///< first byte, counted from the start of the data
  };

  const Entry& entry(const std::string& name) const;
  /// Returns the offset at which the data begins in the file.
  size_t parse(const std::byte* bytes, size_t size);

  std::string path_;
  Tree::Dict metadata_;
  std::map<std::string, Entry> entries_;
  std::shared_ptr<std::byte> data_;  ///< owns the mapping
};

}  // namespace redco
