#pragma once

#include <redco/export.h>
#include <redco/tree.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace redco {

/// A safetensors file: 8 bytes of little-endian header length N, N bytes of JSON that give each
/// tensor's dtype, shape and bytes, then the data without gaps
/// (https://huggingface.co/docs/safetensors, "Format").
///
/// Opening the file reads and checks the header and maps the rest; data is read from disk when a
/// tensor is used. A file that violates the format raises an Error that names the file, the fault
/// and the expected content. The file must not be truncated or written in place while its tensors
/// exist; replacing it, as `save_safetensors` does, is safe.
class REDCO_API SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return path_; }
  /// The names of the tensors in byte order.
  std::vector<std::string> keys() const;
  bool contains(const std::string& name) const { return entries_.count(name) != 0; }
  /// The metadata that the writer stored with the tensors; may be empty.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// Read from the header, without touching the data. Throw Error if there is no such tensor.
  at::ScalarType dtype(const std::string& name) const { return entry(name).dtype; }
  const std::vector<int64_t>& shape(const std::string& name) const { return entry(name).shape; }

  /// The offset of the tensor's first byte in the file.
  size_t offset(const std::string& name) const { return data_begin_ + entry(name).begin; }

  /// The tensor, on the CPU and contiguous. It is a view of the mapped file, which it keeps alive;
  /// it is copied only if the file does not align it for its dtype. Writing to it is allowed and
  /// never changes the file, but is visible in other tensors that this object returned for the same
  /// name. Throws Error, with the nearest name, if there is no such tensor, and if a byte of a
  /// boolean tensor is neither 0 nor 1.
  at::Tensor tensor(const std::string& name) const;

 private:
  struct Entry {
    at::ScalarType dtype;
    std::vector<int64_t> shape;
    size_t begin;  ///< first byte, counted from the start of the data
    size_t end;    ///< one past the last
  };

  const Entry& entry(const std::string& name) const;
  void parse_header(std::string_view header, size_t data_size);

  std::string path_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
  size_t data_begin_ = 0;            ///< the size of the header, including its length field
  std::shared_ptr<std::byte> data_;  ///< the first byte after the header; owns the mapping
};

/// Writes tensors of any device, any strides and any dtype that the format supports, copying one at
/// a time to the CPU. Bytes and order are those of the reference implementation. Writing is atomic:
/// the file is written under another name in the same folder, synced and renamed, so an earlier
/// file of this name stays intact until the new one is complete.
///
/// If a tensor is sharded, every process must call it: each tensor is gathered, written by the
/// first process and dropped before the next, and the call returns, or throws on every process,
/// when the file is complete. Throws Error for a path that cannot be written (a full disk
/// included), a tensor that is undefined, not dense or of a dtype the format lacks (complex,
/// quantized), the reserved name "__metadata__", and text that is not UTF-8.
REDCO_API void save_safetensors(const std::string& path,
                                const std::map<std::string, at::Tensor>& tensors,
                                const std::map<std::string, std::string>& metadata = {});

/// Writes a tree as safetensors, readable by any program that supports the format. Tensors are
/// named by their path as in `named_tensors`; if two paths are equal ("a.b" and b inside a), the
/// second gets the suffix "#2". The rest of the tree is JSON in the metadata under "redco.tree".
/// Sharded tensors are written as by `save_safetensors`. Throws Error as it does, and for a tree
/// nested deeper than 500 levels.
REDCO_API void save_tree(const std::string& path, const Tree& tree);

/// Loads a tree that `save_tree` wrote, identical in every key, kind, number and tensor, except
/// that all tensors are on the CPU. A file of another writer becomes a dictionary of its tensors by
/// name, dots included. The tensors are views of the mapped file, as those of SafetensorsFile are.
///
/// Files of PyTorch's torch.save are read too: dictionaries with texts as keys, lists and tuples
/// (which become lists), tensors, numbers, texts, booleans and None, of PyTorch 1.6 and later as
/// well as the format before. Nothing of such a file is ever run: one that names any function
/// except those that build these values throws an Error with the function's name. Tensors have the
/// strides, and share the storages, that they have in PyTorch.
REDCO_API Tree load_tree(const std::string& path);

}  // namespace redco
