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

/// A model file of llama.cpp, GGUF versions 2 and 3, little-endian: metadata, then tensors, many of
/// them quantised in blocks (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
///
/// Opening reads and checks everything but the data, which is mapped. A file that breaks a rule of
/// the format, or has a tensor of a type that is not read, is an Error that names the file, the
/// tensor or key, and the reason. The file must not be shortened or written in place while it or
/// its tensors live.
class REDCO_API GgufFile {
 public:
  explicit GgufFile(const std::string& path);

  const std::string& path() const { return path_; }
  /// By key ("general.architecture"): numbers, booleans, strings and lists of these.
  const Tree::Dict& metadata() const { return metadata_; }
  /// The names of the tensors, ordered by their bytes.
  std::vector<std::string> keys() const;
  bool contains(const std::string& name) const { return entries_.count(name) != 0; }

  /// That of `tensor`: float32 where the file has it quantised.
  at::ScalarType dtype(const std::string& name) const;
  /// In PyTorch's order, which is the reverse of the file's.
  const std::vector<int64_t>& shape(const std::string& name) const { return entry(name).shape; }

  /// The tensor, on the CPU and contiguous: mapped, as those of SafetensorsFile are, where it is
  /// F32, F16 or BF16; made of new memory where it is Q8_0, Q4_0 or Q4_1. Throws Error, with the
  /// nearest name, when there is none of this name.
  at::Tensor tensor(const std::string& name) const;

 private:
  struct Entry {
    uint32_t type;  ///< ggml's number
    std::vector<int64_t> shape;
    size_t begin;  ///< first byte, counted from the start of the data
  };

  const Entry& entry(const std::string& name) const;
  /// Returns where the data begins in the file.
  size_t parse(const std::byte* bytes, size_t size);

  std::string path_;
  Tree::Dict metadata_;
  std::map<std::string, Entry> entries_;
  std::shared_ptr<std::byte> data_;  ///< owns the mapping
};

}  // namespace redco
