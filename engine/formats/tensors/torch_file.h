#pragma once

#include "torch_pickle.h"

#include <redco/tree.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace redco::io {

/// A file of PyTorch's torch.save with tensors and plain values: a zip archive since 1.6, and
/// before (or with `_use_new_zipfile_serialization=False`) pickles with the storages after them.
/// No function that the file names is ever called. Opening reads the pickles and maps the file;
/// every tensor is checked to be within the file. Throws Error with the path, the place and the
/// reason for everything else: other functions, TorchScript, damage, big-endian numbers. The sums
/// (CRC-32) of storages are not checked, because that would read the whole file.
class TorchFile {
 public:
  explicit TorchFile(const std::string& path);

  /// Whether the first bytes of a file are those of torch.save.
  static bool is_one(uint64_t first_bytes);
  static bool is_one(const std::string& path);

  /// The value that was saved; tuples become lists. Tensors have the strides and share the storages
  /// that they have in PyTorch, and are views of the mapped file where it aligns their storage.
  Tree tree() const;

  const std::string& path() const { return path_; }
  size_t size() const { return size_; }
  const PickleValue& value() const { return value_; }
  const std::vector<TorchTensor>& tensors() const { return tensors_; }
  /// The first byte of a storage in the mapped file.
  std::byte* begin(size_t storage) const { return begins_[storage]; }
  /// Owns the mapping.
  const std::shared_ptr<std::byte>& mapping() const { return mapping_; }

 private:
  class TreeMaker;
  void open_archive(std::string_view bytes);
  void open_legacy(std::string_view bytes);
  void take_tensors(const TorchUnpickler& unpickler);
  void place(size_t storage, std::string_view bytes);

  std::string path_;
  size_t size_ = 0, pickle_size_ = 0;
  std::shared_ptr<std::byte> mapping_;
  std::string pickle_;  ///< of an archive; the texts of `value_` are views of it
  PickleValue value_;
  std::vector<TorchStorage> storages_;
  std::vector<TorchTensor> tensors_;
  std::vector<std::byte*> begins_;  ///< of the storages
};

/// Such a file with a dictionary of tensors by name: the weights of a model.
class TorchWeights {
 public:
  explicit TorchWeights(const std::string& path);

  std::vector<std::string> keys() const;
  bool contains(const std::string& name) const { return entries_.count(name) != 0; }
  at::ScalarType dtype(const std::string& name) const { return entry(name).dtype; }
  const std::vector<int64_t>& shape(const std::string& name) const { return entry(name).sizes; }

  /// The tensor, contiguous: a view of the mapped file, or a copy if the file does not align it, it
  /// is not contiguous there, or another tensor has a part of its elements.
  at::Tensor tensor(const std::string& name) const;

 private:
  struct Entry : TorchTensor {
    bool is_shared = false;  ///< with a tensor that is a view
  };
  const Entry& entry(const std::string& name) const { return entries_.at(name); }
  void find_shared();

  TorchFile file_;
  std::map<std::string, Entry> entries_;
};

}  // namespace redco::io
